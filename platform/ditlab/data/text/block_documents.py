"""Documents of a block of a source, as pieces for a tokeniser. Those that cannot be read are handed to `leave_out`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.source_files import BadRecord
from ditlab.data.sources.records import read_records
from ditlab.data.sources.text_files import text_between
from ditlab.data.text.pieces import Document, TextPiece, pieces

LeaveOut = Callable[[BadRecord], None]
"""Function that counts a record which cannot be read, or raises it where none may be left out."""
IN_MEMORY = 2**26
"""Most bytes of a text file that is kept while it is checked; a larger one is read twice."""


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
