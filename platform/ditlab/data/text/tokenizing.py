"""Tokenising of a corpus: pieces of documents to ids in any number of processes, ids to rows of one length.

The processes that tokenise import this module, which needs neither torch nor pyarrow.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from ditlab.data.processes import in_processes
from ditlab.data.text.pieces import PIECE_LENGTH, TextPiece
from ditlab.data.text.tokenizer import Tokenizer
from ditlab.data.text.tokenizer_files import load_tokenizer


def encode(pieces: Iterable[TextPiece], tokenizer: Tokenizer, processes: int = 1) -> Iterator[np.ndarray]:
    """Tokenise pieces in their order: (tokens,) in the tokeniser's dtype, an end token behind each document.

    Every number of processes gives the same tokens. Raises UserError where a process is killed.
    """
    if processes == 1:
        yield from (_encode_group(tokenizer, group) for group in _groups(pieces))
        return
    yield from in_processes(_encode_in_process, _groups(pieces), processes, "tokenises", _start, (tokenizer.content,))


class Packer:
    """Cutter of a stream of tokens into rows of `length`; the last incomplete row is dropped."""

    def __init__(self, length: int):
        self.tokens = 0
        """Tokens taken in so far."""
        self._length = length
        self._parts: list[np.ndarray] = []

    def rest(self, dtype: str) -> np.ndarray:
        """Return the tokens of the last incomplete row, once all rows are taken."""
        return np.concatenate([np.empty(0, dtype), *self._parts])

    @property
    def dropped(self) -> int:
        """Tokens of the last incomplete row."""
        return self.tokens % self._length

    def rows(self, stream: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield (rows, length) at a time, at least one row, in the stream's dtype."""
        held = 0
        for part in stream:
            self.tokens += len(part)
            self._parts.append(part)
            held += len(part)
            if held >= self._length:
                joined = np.concatenate(self._parts)
                whole = held - held % self._length
                yield joined[:whole].reshape(-1, self._length)
                self._parts, held = [joined[whole:].copy()], held - whole  # a copy: a view keeps all of `joined`


def _groups(pieces: Iterable[TextPiece]) -> Iterator[list[TextPiece]]:
    """Group pieces to about PIECE_LENGTH characters, as many short documents cost less together."""
    group: list[TextPiece] = []
    length = 0
    for piece in pieces:
        group.append(piece)
        length += len(piece.text)
        if length >= PIECE_LENGTH:
            yield group
            group, length = [], 0
    if group:
        yield group


def _encode_group(tokenizer: Tokenizer, group: list[TextPiece]) -> np.ndarray:
    end = np.array([tokenizer.end], tokenizer.dtype)
    return np.concatenate([part for piece in group for part in (tokenizer.ids(piece.text), end[: piece.last])])


_tokenizer: Tokenizer
"""Tokeniser of a process that tokenises."""


def _start(content: bytes) -> None:
    global _tokenizer
    _tokenizer = load_tokenizer(content, "the tokeniser")


def _encode_in_process(group: list[TextPiece]) -> np.ndarray:
    return _encode_group(_tokenizer, group)
