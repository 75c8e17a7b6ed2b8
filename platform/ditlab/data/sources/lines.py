"""Lines of text, JSON and CSV files; between two of their bytes, so that parts of a large file can
be read alone.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import IO, Any

from ditlab.data.source_files import CONVERT, BadRecord, SourceFile, not_utf8, open_unpacked
from ditlab.data.sources.tables import check_columns
from ditlab.errors import first_line, nearest
from ditlab.storage.plain_files import MIB

FIELD_BYTES = 256 * MIB
"""Most bytes of a value of CSV."""
READ_BYTES = MIB
"""Bytes that are read at a time, and in which a place for a cut is looked for."""
_SPACES = b" \t\n\r\v\f"


def lines_between(
    file: SourceFile, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """Iterate over the lines that begin in [start, stop), and their offsets."""
    with open_unpacked(file) as source:
        place = start
        if start:  # the line that holds the byte before is of another range
            source.seek(start - 1)
            place = start - 1 + len(source.readline())
        while stop is None or place < stop:
            line = source.readline()
            if not line:
                return
            yield place, line
            place += len(line)


def parse_line(line: bytes, begin: int, keys: Mapping[str, str]) -> tuple[Any, ...] | None:
    """Return the values of keys (by flag) of a line, which begins at `begin` of its file; None for
    an empty one.

    Raises BadRecord for what is no JSON object with these keys.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(begin, error) from error
    if not begin:
        text = text.removeprefix("\ufeff")
    if not text.strip():
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"is no JSON ({first_line(error)})", "a line takes one object") from error
    if not isinstance(record, dict):
        raise BadRecord(
            f"holds a {type(record).__name__}, not a JSON object", "a line takes one object"
        )
    for flag, key in keys.items():
        if key not in record:
            raise BadRecord(f"has no key '{key}'", f"give {flag} ({nearest(key, list(record))})")
    return tuple(record[key] for key in keys.values())


def json_rows(
    file: SourceFile, keys: Mapping[str, str], start: int = 0, stop: int | None = None
) -> Iterator[tuple[str, tuple[Any, ...] | BadRecord]]:
    """Iterate over the lines between two bytes of a file, each with its place: values of keys, or
    what is wrong.
    """
    for number, (begin, line) in enumerate(lines_between(file, start, stop), start=1):
        where = f"the line at byte {begin:,}" if start else f"line {number}"
        try:
            values = parse_line(line, begin, keys)
        except BadRecord as bad_line:
            yield where, bad_line
        else:
            if values is not None:
                yield where, values


def first_keys(file: SourceFile) -> list[str]:
    """Return the keys of the first line of JSON. Raises as the libraries do."""
    with open_unpacked(file) as source:
        found = json.loads(source.readline().decode("utf-8-sig"))
    return [*found] if isinstance(found, dict) else []


def csv_columns(file: SourceFile) -> list[str]:
    """Return the line of names of a CSV file. Raises as the libraries do."""
    with io.TextIOWrapper(open_unpacked(file), "utf-8-sig", newline="") as text:
        delimiter = "\t" if file.suffix == ".tsv" else ","
        return next(csv.reader(text, delimiter=delimiter), [])


def csv_rows(file: SourceFile, columns: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Iterate over columns (by the flag that names each) of a CSV file, with commas or tabs, below
    a line of names.

    All values are text, those that a short line lacks None. Raises UserError for a column that is
    not there, BadRecord, after the rows before, for what is not UTF-8, and as the libraries do.
    """
    csv.field_size_limit(FIELD_BYTES)
    try:
        with io.TextIOWrapper(open_unpacked(file), "utf-8-sig", newline="") as text:
            delimiter = "\t" if file.suffix == ".tsv" else ","
            rows = csv.DictReader(text, delimiter=delimiter, strict=True)
            check_columns(file, columns, rows.fieldnames or [])
            for row in rows:
                yield tuple(row[column] for column in columns.values())
    except UnicodeDecodeError as error:
        raise BadRecord(f"is no UTF-8 (byte {error.object[error.start]:#04x})", CONVERT) from error


def text_between(file: SourceFile, start: int = 0, stop: int | None = None) -> Iterator[str]:
    """Iterate over the text of a file between two of its bytes, in blocks of any size.

    Both ends move on to the next line's beginning between two characters that are no space, where
    tokenisers cut as well, and where there is none in reach, to the next character: so the ranges
    of a file are its text, each part once. A byte order mark at the file's start is skipped.
    Raises BadRecord for what is not UTF-8, and as the libraries do.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_unpacked(file) as source:
        place = _cut(source, start, file.size)
        end = None
        if stop is not None and stop < file.size:
            end = _cut(source, stop, file.size)
        if start or end is not None:
            source.seek(place)
        ended = False
        while not ended:
            wanted = READ_BYTES if end is None else min(READ_BYTES, end - place)
            block = source.read(wanted)
            ended = not block
            waiting = len(decoder.getstate()[0])  # bytes of a character that the last block cut
            try:
                text = decoder.decode(block, final=ended)
            except UnicodeDecodeError as error:
                raise not_utf8(place - waiting, error) from error
            if not place:
                text = text.removeprefix("\ufeff")
            yield text
            place += len(block)


def _cut(source: IO[bytes], place: int, size: int) -> int:
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
    for skip, byte in enumerate(ahead[:4]):
        if byte & 0b1100_0000 != 0b1000_0000:  # the first byte of a character
            return place + skip
    return place
