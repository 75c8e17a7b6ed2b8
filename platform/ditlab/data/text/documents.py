"""Documents of text files, JSON lines and Parquet: streamed, and cut into pieces that are tokenised one by one."""

import codecs
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ditlab.data.parquet import parquet_batches
from ditlab.data.source_files import file_lines, file_problem, visible_name
from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import open_plain

READ_BYTES = 2**20
"""Bytes of a text file that are read at a time."""
PARQUET_ROWS = 64
"""Rows of a Parquet file that are read at a time: a web page each, a few hundred kilobytes together."""
PIECE_LENGTH = 2**18
"""Most characters of a document that are tokenised at once."""

LISTED = 5
"""Files that cannot be opened, listed in a store's note."""

Document = Iterable[str]
"""Text of a document, in blocks of any size."""


@dataclass(frozen=True)
class TextPiece:
    """Part of a document."""

    text: str
    last: bool
    """True for the last piece of its document: an end token follows."""


def pieces(document: Document) -> Iterator[TextPiece]:
    """Cut a document of any size into pieces of up to PIECE_LENGTH characters; none for a document without text.

    The cuts depend on the text alone. A piece ends at a line's end between two characters that are no space, where the
    usual pre-tokenisers cut as well, so that the pieces give the tokens of the whole; where a piece has no such place,
    it ends before a lone space; where it has none either, anywhere.
    """
    rest = ""
    for block in document:
        for start in range(0, len(block), PIECE_LENGTH):
            rest += block[start : start + PIECE_LENGTH]
            while len(rest) > PIECE_LENGTH:
                stop = _cut(rest)
                yield TextPiece(rest[:stop], last=False)
                rest = rest[stop:]
    if rest:
        yield TextPiece(rest, last=True)


def _cut(text: str) -> int:
    for mark, behind in (("\n", 1), (" ", 0)):
        at = text.rfind(mark, 1, PIECE_LENGTH)
        while at > 0:
            if not (text[at - 1].isspace() or text[at + 1].isspace()):
                return at + behind
            at = text.rfind(mark, 1, at)
    return PIECE_LENGTH


@dataclass(frozen=True)
class TextFiles:
    """Documents of a file or of a folder, which is searched to its depth and sorted by path.

    `.txt`: a file is a document. `.jsonl`: one a line, under a key. `.parquet`: one a row, in a column. UTF-8; a byte
    order mark at a file's start is left out.
    """

    source: Path
    column: str = "text"

    @property
    def origin(self) -> str:
        """Name of the corpus in messages."""
        return f"--source={self.source}"

    @cached_property
    def files(self) -> list[Path]:
        """Files of documents. Raises UserError where there are none."""
        if not self.source.is_dir():
            if self.source.suffix not in _READERS:
                raise UserError(f"{self.origin} is no {_KNOWN} file; rename it, or name another.")
            return [self.source]
        found = [file for file in self._named if file not in self._problems]
        if not found:
            listed = f" ({self.left_out})" if self.left_out else ""
            raise UserError(f"{self.origin} holds no {_KNOWN} file{listed}; name a file, or a folder that holds some.")
        return found

    @property
    def left_out(self) -> str:
        """Files of a folder that cannot be opened, with the reasons: pipes, devices, links that lead nowhere."""
        listed = [f"{file.relative_to(self.source)}: {reason}" for file, reason in self._problems.items()]
        if not listed:
            return ""
        more = f", and {len(listed) - LISTED:,} more" if len(listed) > LISTED else ""
        return visible_name(f"{len(listed):,} left out: {', '.join(listed[:LISTED])}{more}")

    @cached_property
    def _named(self) -> list[Path]:
        return sorted(file for file in self.source.rglob("*") if file.suffix in _READERS and not file.is_dir())

    @cached_property
    def _problems(self) -> dict[Path, str]:
        return {file: reason for file in self._named if (reason := file_problem(file))}

    def documents(self) -> Iterator[Document]:
        """Iterate over the documents, each in blocks that must be used up before the next.

        Raises UserError for a file that cannot be read, is not UTF-8, or holds anything but documents.
        """
        for file in self.files:
            with _naming(file):
                yield from _READERS[file.suffix](file, self.column)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Turn the errors of reading a file in the body into UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{file} cannot be read ({first_line(error)}); check the file.") from error


def _text_file(file: Path, _: str) -> Iterator[Document]:
    yield _decoded(file)


def _decoded(file: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    position, ended = 0, False
    with _naming(file), open_plain(file, follow=True) as source:
        while not ended:
            block = source.read(READ_BYTES)
            ended = not block
            waiting = len(decoder.getstate()[0])  # bytes of a character that the last block cut
            try:
                text = decoder.decode(block, final=ended)
            except UnicodeDecodeError as error:
                raise not_utf8(file, position - waiting, error) from error
            yield text if position else text.removeprefix("\ufeff")
            position += len(block)


def _json_lines(file: Path, key: str) -> Iterator[Document]:
    position = 0
    for number, line in enumerate(file_lines(file), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(file, position, error) from error
        position += len(line)
        if number == 1:
            text = text.removeprefix("\ufeff")
        if text.strip():
            yield [_of_line(text, key, f"{file}, line {number}")]


def _of_line(line: str, key: str, place: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is no JSON ({error}); a line takes one object.") from error
    if not isinstance(record, dict):
        raise UserError(f"{place}: holds a {type(record).__name__}, not a JSON object; a line takes one object.")
    if key not in record:
        raise UserError(f"{place}: has no key '{key}'; {nearest(key, list(record))} Give --column.")
    return _checked(record[key], key, place)


def _parquet(file: Path, column: str) -> Iterator[Document]:
    row = 0
    for batch in parquet_batches(file, {"--column": column}, PARQUET_ROWS):
        for value in batch.column(0):
            yield [_checked(_of_row(value, f"{file}, row {row}"), column, f"{file}, row {row}")]
            row += 1


def _of_row(value: Any, place: str) -> object:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: is not UTF-8 ({error}); write the file again with text in UTF-8.") from error


def _checked(value: object, key: str, place: str) -> str:
    if not isinstance(value, str):
        problem = "null" if value is None else f"a {type(value).__name__}"
        raise UserError(f"{place}: '{key}' holds {problem}, not text; leave it out of the file, or give --column.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"{place}: '{key}' holds half of a surrogate pair at character {error.start}, which is no text; "
                "write the file again."
            ) from error
    return value


def not_utf8(file: Path | str, start: int, error: UnicodeDecodeError) -> UserError:
    """Return the error for bytes that are not UTF-8, in text that begins at offset `start` of a file or other place."""
    return UserError(
        f"{file} is not UTF-8: byte {error.object[error.start]:#04x} at offset {start + error.start} (from 0); "
        "convert it, for one with `iconv -f latin1 -t utf-8`."
    )


_READERS = {".jsonl": _json_lines, ".parquet": _parquet, ".txt": _text_file}
_KNOWN = ", ".join(_READERS)
