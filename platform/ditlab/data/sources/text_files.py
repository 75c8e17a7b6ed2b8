"""Text files, whole or a part between two bytes."""

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.opening import open_source
from ditlab.data.source_files import CONVERT, BadRecord, not_utf8
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB

READ_BYTES = MIB
"""Bytes that are read at a time, and in which a place for a cut is looked for."""
_SPACES = b" \t\n\r\v\f"


def text_between(file: SourceFile, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Iterate over the text of a file between two of its bytes, in blocks of any size.

    Both ends move on to the next line's beginning between two characters that are no space, where tokenisers cut as
    well, and where there is none in reach, to the next character: so the ranges of a file are its text, each part once.
    A byte order mark at the file's start is left out. Raises BadRecord for what is not UTF-8, and where reading fails.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    place = start
    try:
        with open_source(file) as source:
            place = _cut(source, start, file.size)
            end = None if stop is None or stop >= file.size else _cut(source, stop, file.size)
            source.seek(place)
            ended = False
            while not ended:
                block = source.read(READ_BYTES if end is None else min(READ_BYTES, end - place))
                ended = not block
                waiting = len(decoder.getstate()[0])  # bytes of a character that the last block cut
                try:
                    text = decoder.decode(block, final=ended)
                except UnicodeDecodeError as error:
                    reason = not_utf8(place - waiting, error)
                    raise BadRecord(f"{file.place} {reason}; {CONVERT}.", file.place, reason) from error
                yield text if place else text.removeprefix("\ufeff")
                place += len(block)
    except OSError as error:
        reason = first_line(error)
        raise BadRecord(f"{file.place} cannot be read ({reason}); check the file.", file.place, reason) from error


def _cut(source: BinaryIO, place: int, size: int) -> int:
    """Return the first good place for a cut from a place on."""
    if place <= 0 or place >= size:
        return max(0, min(place, size))
    source.seek(place)
    ahead = source.read(READ_BYTES)
    at = ahead.find(b"\n", 1)
    while 0 < at < len(ahead) - 1:
        if ahead[at - 1] not in _SPACES and ahead[at + 1] not in _SPACES:
            return place + at + 1
        at = ahead.find(b"\n", at + 1)
    return place + next((skip for skip in range(min(4, len(ahead))) if ahead[skip] & 0b1100_0000 != 0b1000_0000), 0)
