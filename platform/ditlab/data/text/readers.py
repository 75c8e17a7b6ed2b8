"""Documents of one file: text, JSON lines, Parquet. A document that cannot be read is handed to `leave_out`."""

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ditlab.data.parquet import parquet_batches
from ditlab.data.source_files import CONVERT, BadRecord, file_lines, not_utf8
from ditlab.data.text.pieces import Document
from ditlab.errors import first_line, nearest
from ditlab.storage.plain_files import open_plain

READ_BYTES = 2**20
"""Bytes of a text file that are read at a time."""
PARQUET_ROWS = 64
"""Rows of a Parquet file that are read at a time: a web page each, a few hundred kilobytes together."""

LeaveOut = Callable[[BadRecord], None]
"""Function that counts a record which cannot be read, or raises it where none may be left out."""


def read_text_file(file: Path, _: str, leave_out: LeaveOut) -> Iterator[Document]:
    """Read a text file, which is a document. It counts as a whole or not at all."""
    try:
        for _block in _decoded(file):  # to its end, before its first block is handed out
            pass
    except BadRecord as record:
        leave_out(record)
    else:
        yield _decoded(file)


def _decoded(file: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    position, ended = 0, False
    with open_plain(file, follow=True) as source:
        while not ended:
            block = source.read(READ_BYTES)
            ended = not block
            waiting = len(decoder.getstate()[0])  # bytes of a character that the last block cut
            try:
                text = decoder.decode(block, final=ended)
            except UnicodeDecodeError as error:
                raise _no_text(file, str(file), not_utf8(position - waiting, error)) from error
            yield text if position else text.removeprefix("\ufeff")
            position += len(block)


def read_json_lines(file: Path, key: str, leave_out: LeaveOut) -> Iterator[Document]:
    """Read lines of JSON, each with a document under a key."""
    position = 0
    for number, line in enumerate(file_lines(file), start=1):
        begin, position = position, position + len(line)
        place = f"{file}, line {number}"
        try:
            text = _line_text(line, file, place, begin)
            if text.strip():
                document = _of_line(text, key, place)
                yield [document]
        except BadRecord as record:
            leave_out(record)


def _line_text(line: bytes, file: Path, place: str, begin: int) -> str:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise _no_text(file, place, not_utf8(begin, error)) from error
    return text if begin else text.removeprefix("\ufeff")


def _of_line(line: str, key: str, place: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord.at(place, f"is no JSON ({first_line(error)})", "a line takes one object") from error
    if not isinstance(record, dict):
        raise BadRecord.at(place, f"holds a {type(record).__name__}, not a JSON object", "a line takes one object")
    if key not in record:
        near = nearest(key, list(record))
        raise BadRecord(f"{place}: has no key '{key}'; {near} Give --column.", place, f"has no key '{key}'")
    return _checked(record[key], key, place)


def read_parquet(file: Path, column: str, leave_out: LeaveOut) -> Iterator[Document]:
    """Read a column of a Parquet file, whose rows are documents. Behind a damage, the rest of the file is left out."""
    row = 0
    try:
        for batch in parquet_batches(file, {"--column": column}, PARQUET_ROWS):
            for value in batch.column(0):
                place, row = f"{file}, row {row}", row + 1
                try:
                    document = _checked(_of_row(value, place), column, place)
                except BadRecord as record:
                    leave_out(record)
                else:
                    yield [document]
    except BadRecord as record:  # of the file: the rest of it is left out
        place = f"{file}, the rest from row {row:,} on" if row else str(file)
        leave_out(BadRecord(str(record), place, record.reason))


def _of_row(value: Any, place: str) -> object:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise BadRecord.at(place, f"is not UTF-8 ({error})", "write the file again with text in UTF-8") from error


def _checked(value: object, key: str, place: str) -> str:
    if not isinstance(value, str):
        problem = "null" if value is None else f"a {type(value).__name__}"
        raise BadRecord.at(place, f"'{key}' holds {problem}, not text", "leave it out of the file, or give --column")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            reason = f"'{key}' holds half of a surrogate pair at character {error.start}, which is no text"
            raise BadRecord.at(place, reason, "write the file again") from error
    return value


def _no_text(file: Path, place: str, reason: str) -> BadRecord:
    """Return the error for bytes that are not UTF-8."""
    return BadRecord(f"{file} {reason}; {CONVERT}.", place, reason)


READERS = {".jsonl": read_json_lines, ".parquet": read_parquet, ".txt": read_text_file}
"""Readers by the files' endings."""
