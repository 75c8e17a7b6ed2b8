"""Documents of a block of a source, cut into pieces that are tokenised one by one, whatever their
size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ditlab.data.import_blocks import InputBlock
from ditlab.data.source_files import UNREADABLE, BadRecord, SourceFile
from ditlab.data.sources.lines import text_between
from ditlab.data.sources.records import SourceRecord, read_records, text_problem
from ditlab.errors import first_line

PIECE_LENGTH = 2**18
"""Most characters of a document that are tokenised at once."""

Drop = Callable[[SourceRecord], None]
"""Function that counts a record by its problem, or raises that where none may be dropped; without
one it has no text."""
IN_MEMORY = 2**26
"""Most bytes of a text file that is kept while it is checked; a larger one is read twice."""


@dataclass(frozen=True)
class TextPiece:
    """Part of a document."""

    text: str
    last: bool
    """True for the last piece of its document: an end token follows."""

    @property
    def num_bytes(self) -> int:
        """Bytes of its text in UTF-8."""
        if self.text.isascii():
            return len(self.text)
        return len(self.text.encode())


def pieces(document: Iterable[str]) -> Iterator[TextPiece]:
    """Cut a document of any size into pieces of up to PIECE_LENGTH characters; none for a document
    without text.

    A piece ends at a line's end between two characters that are no space, where the usual
    pre-tokenisers cut as well, so that the pieces give the tokens of the whole; else before a lone
    space; else anywhere.
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


def block_pieces(block: InputBlock, column: str, drop: Drop) -> Iterator[TextPiece]:
    """Iterate over the pieces of a block's documents.

    Text files: a file is a document, which counts as a whole or not at all; a large one has several
    blocks. Other kinds: one a record, in a column. UTF-8. Raises UserError for a column that is not
    there.
    """
    if block.kind == "txt":
        for file in block.files:
            yield from _file_pieces(file, block, drop)
        return
    for record in read_records(block, {"--column": column}):
        text: Any = record.values[0] if record.values else None
        problem = record.problem or text_problem("--column", column, text)
        if text and not problem:
            yield from pieces([text])
        else:
            drop(replace(record, problem=problem))


def _file_pieces(file: SourceFile, block: InputBlock, drop: Drop) -> Iterator[TextPiece]:
    """Iterate over the pieces of a block's part of a text file, which is read to its end first: it
    may be no UTF-8.
    """

    def read() -> Iterator[str]:
        return text_between(file, block.start, block.stop)

    record = SourceRecord(file, "")
    try:
        is_kept = file.size <= IN_MEMORY and not file.compression
        kept = deque(read(), maxlen=None if is_kept else 0)
    except BadRecord as problem:
        drop(replace(record, problem=problem))
        return
    except UNREADABLE as error:
        finding = f"cannot be read ({first_line(error)})"
        drop(replace(record, problem=BadRecord(finding, "check the file")))
        return
    last = block.stop is None or block.stop >= file.size
    empty = True
    for piece in pieces(kept or read()):
        empty = False
        if not last:
            piece = TextPiece(piece.text, last=False)
        yield piece
    if empty and last and block.start:
        yield TextPiece("", last=True)  # the document's text ended in the block before
    elif empty and last:
        drop(record)
