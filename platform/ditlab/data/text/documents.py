"""Documents of a block of a source, cut into pieces that are tokenised one by one, whatever their size.

Documents that cannot be read are handed to `leave_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.block_imports.source_files import BadRecord
from ditlab.data.sources.lines import text_between
from ditlab.data.sources.records import read_records

PIECE_LENGTH = 2**18
"""Most characters of a document that are tokenised at once."""

Document = Iterable[str]
"""Text of a document, in blocks of any size."""
LeaveOut = Callable[[BadRecord], None]
"""Function that counts a record which cannot be read, or raises it where none may be left out."""
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
        return len(self.text) if self.text.isascii() else len(self.text.encode())


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


def block_pieces(block: InputBlock, column: str, leave_out: LeaveOut) -> Iterator[TextPiece]:
    """Iterate over the pieces of a block's documents.

    Text files: a file is a document, which counts as a whole or not at all; a large one has several blocks. Other
    kinds: one a record, in a column. UTF-8. Raises UserError for a column that is not there.
    """
    if block.kind == "txt":
        for number in range(len(block.files)):
            yield from _file_pieces(block, number, leave_out)
        return
    for record in read_records(block, {"--column": column}):
        try:
            if record.problem:
                raise record.problem
            text = checked_text(record.values[0], column, record.place)
        except BadRecord as problem:
            leave_out(problem)
        else:
            yield from pieces([text])


def _file_pieces(block: InputBlock, number: int, leave_out: LeaveOut) -> Iterator[TextPiece]:
    file = block.files[number]
    try:
        text: Document = _checked_blocks(block, number)
    except BadRecord as record:
        leave_out(record)
        return
    last = block.stop is None or block.stop >= file.size
    empty = True
    for piece in pieces(text):
        empty = False
        yield piece if last else TextPiece(piece.text, last=False)
    if empty and last and block.start:
        yield TextPiece("", last=True)  # the document's text ended in the block before


def _checked_blocks(block: InputBlock, number: int) -> Document:
    """Return the text of a file that is UTF-8 to its end. Raises BadRecord."""
    file = block.files[number]
    if file.size <= IN_MEMORY:
        return list(text_between(file, block.start, block.stop))
    for _ in text_between(file, block.start, block.stop):
        pass
    return text_between(file, block.start, block.stop)


def checked_text(value: object, key: str, place: str) -> str:
    """Return a value that is text. Raises BadRecord for any other."""
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


@dataclass(frozen=True)
class BlockCorpus:
    """Documents of several blocks, one after the other (`token_store.Corpus`)."""

    source: str
    blocks: Sequence[InputBlock]
    column: str
    refuses: bool
    """True where no document may be left out."""

    @property
    def origin(self) -> str:
        """Name of the corpus in messages."""
        return f"--source={self.source}"

    def pieces(self) -> Iterator[TextPiece]:
        """Iterate over the documents' pieces.

        Raises the first BadRecord where there is no document beside it, or none may be left out.
        """
        bad: list[BadRecord] = []

        def leave_out(record: BadRecord) -> None:
            if self.refuses:
                raise record
            bad[1:] = [record]

        found = False
        for block in self.blocks:
            for piece in block_pieces(block, self.column, leave_out):
                found = True
                yield piece
        if bad and not found:
            raise bad[0]
