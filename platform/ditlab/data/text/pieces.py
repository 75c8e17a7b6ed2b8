"""Documents cut into pieces that are tokenised one by one, whatever their size."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

PIECE_LENGTH = 2**18
"""Most characters of a document that are tokenised at once."""

Document = Iterable[str]
"""Text of a document, in blocks of any size."""


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
