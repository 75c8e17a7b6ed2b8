"""Lines of a file between two of its bytes, so that parts of a large file can be read by themselves."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ditlab.data.block_imports.listing import SourceFile
from ditlab.data.block_imports.opening import open_source
from ditlab.data.source_files import CONVERT, LINE_BYTES, BadRecord, not_utf8
from ditlab.errors import UserError, first_line, nearest


def byte_ranges(size: int, most_bytes: int) -> list[tuple[int, int]]:
    """Cut a file of `size` bytes into ranges of at most `most_bytes`, about equally long."""
    num = max(1, -(-size // most_bytes))
    cuts = [number * size // num for number in range(num + 1)]
    return list(pairwise(cuts))


def lines_between(file: SourceFile, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Iterate over the lines that begin in [start, stop), each with the offset of its first byte.

    Every line of a file is in one of its ranges. Raises OSError as `open_source` does, and UserError for a line of no
    end.
    """
    with open_source(file) as source:
        place = start
        if start:  # the line that holds the byte before is of another range
            source.seek(start - 1)
            place = start - 1 + len(_line(source, file, start - 1))
        while stop is None or place < stop:
            line = _line(source, file, place)
            if not line:
                return
            yield place, line
            place += len(line)


def _line(source: Any, file: SourceFile, place: int) -> bytes:
    line: bytes = source.readline(LINE_BYTES + 1)
    if len(line) > LINE_BYTES:
        raise UserError(
            f"{file.place}: the line at byte {place:,} has more than {LINE_BYTES:,} bytes; write one document a line, "
            "and longer ones into .txt files."
        )
    return line


def parse_line(line: bytes, begin: int, name: str, place: str, keys: dict[str, str]) -> tuple[Any, ...] | None:
    """Return the values of keys (by the flag that names each) of a line; None for an empty one.

    `begin` is the line's first byte in its file, `name` the file's name. Raises BadRecord for what is no JSON object
    with these keys.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        reason = not_utf8(begin, error)
        raise BadRecord(f"{name} {reason}; {CONVERT}.", place, reason) from error
    text = text if begin else text.removeprefix("\ufeff")
    if not text.strip():
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord.at(place, f"is no JSON ({first_line(error)})", "a line takes one object") from error
    if not isinstance(record, dict):
        raise BadRecord.at(place, f"holds a {type(record).__name__}, not a JSON object", "a line takes one object")
    for flag, key in keys.items():
        if key not in record:
            near = nearest(key, list(record))
            raise BadRecord(f"{place}: has no key '{key}'; {near} Give {flag}.", place, f"has no key '{key}'")
    return tuple(record[key] for key in keys.values())
