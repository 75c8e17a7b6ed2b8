"""Store of a corpus: its documents as tokens, an end token behind each, packed to rows of one length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ditlab.data.block_imports.plan import MOST_LISTED, BlockReceipt, InputBlock, LeftOut, packed
from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.block_imports.source_files import BadRecord, visible_name
from ditlab.data.stores.manifest import Column, folder_name
from ditlab.data.stores.writer import write_shards
from ditlab.data.text.documents import PIECE_LENGTH, TextPiece, block_pieces
from ditlab.data.text.tokenizer import (
    TOKENIZER_NAME,
    ByteTokenizer,
    Tokenizer,
    fetch_tokenizer,
    learn_bpe,
    open_tokenizer,
)
from ditlab.errors import UserError
from ditlab.progress import Progress

DEFAULT_VOCABULARY = 4096
"""Vocabulary of a BPE, the default in `spec.importing` and `spec.data`."""
LEARNING_BYTES = 2**29
"""Bytes of text that a BPE learns from: of a corpus n times as large, every n-th piece."""
UNREADABLE = "unreadable"
"""Reason for which documents are left out."""
DOCUMENTS, BYTES, TOKENS = "documents", "bytes", "tokens"
"""Names of the sums of blocks."""
REST, FIRST = "rest", "first problem"
"""Keys of a receipt's detail: tokens that filled no row; the message on the first unreadable document."""


def rows_label(tokenizer: str, vocabulary: int, length: int) -> str:
    """Return tokeniser and row length as part of a folder's name: `bytes-1024`, `bpe-4096-1024`."""
    path = Path(tokenizer)
    stem = path.parent.name if path.name == TOKENIZER_NAME and path.parent.name else path.name
    name = f"bpe-{vocabulary}" if tokenizer == "bpe" else folder_name(stem.removesuffix(".json"))
    return f"{name}-{length}"


def too_short(option: str, length: int, origin: str, tokens: int) -> str:
    """Return the message on a corpus that fills no row; `option` sets the length: `--length`."""
    return (
        f"{option}={length} is longer than the whole corpus: {origin} gives {tokens:,} tokens; set {option} to "
        f"{tokens} or less, or add text."
    )


def request_tokenizer(
    name: str, vocabulary: int, read: Callable[[], Iterable[TextPiece]], origin: str, progress: Progress
) -> Tokenizer:
    """Open the tokeniser of a name: `bytes`, `bpe`, a file, a folder, or a name on the Hugging Face hub.

    A BPE of `vocabulary` tokens is learned from the corpus, whose pieces `read` gives: once to measure it, once to
    learn. Raises UserError for a tokeniser that cannot be read or fetched, and for a corpus (`origin`) without text.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name != "bpe":
        path = Path(name).expanduser()
        is_path = path.exists() or name.endswith(".json") or name.startswith((".", "/", "~"))
        return open_tokenizer(path) if is_path else fetch_tokenizer(name)
    total = 0
    for piece in read():
        total += piece.num_bytes
        progress("reading", total, None)
    if not total:
        raise UserError(f"{origin} holds no text; name files that hold some.")
    every = -(-total // LEARNING_BYTES)

    def texts() -> Iterator[str]:
        done = 0
        for number, piece in enumerate(read()):
            if not number % every:
                yield piece.text
            done += piece.num_bytes
            progress("learning the vocabulary", done, total)

    return learn_bpe(texts(), vocabulary)


def token_columns(tokenizer: Tokenizer, length: int) -> dict[str, Column]:
    """Return the columns of a store of tokens."""
    tokens = Column(
        dtype=tokenizer.dtype,
        shape=(length,),
        num_classes=tokenizer.vocabulary,
        unit="token",
        description=f"documents joined by token {tokenizer.end}",
    )
    return {"tokens": tokens}


@dataclass(frozen=True)
class TextRules:
    """Rules of an import of text, without state; the tokeniser lies in the import's folder."""

    tokenizer: str
    """SHA-256 of the tokeniser's file."""
    column: str
    length: int
    """Tokens of a row."""
    refuses: bool
    """True where no document may be left out."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Tokenise a block's documents, in their order, and write their rows.

        The tokens behind the last whole row go into the receipt: rows are made of those of all blocks in the end.
        Raises RefusedSource for a document that may not be left out, and UserError as `block_pieces` does.
        """
        tokenizer = _open(folder / TOKENIZER_NAME, self.tokenizer)
        bad: list[BadRecord] = []

        def leave_out(record: BadRecord) -> None:
            if self.refuses:
                raise RefusedSource(str(record))
            bad.append(record)

        counter = PieceCounter(block_pieces(block, self.column, leave_out))
        rest, tokens = np.empty(0, tokenizer.dtype), 0

        def rows() -> Iterator[Mapping[str, np.ndarray]]:
            nonlocal rest, tokens
            for part in encode(counter, tokenizer):
                joined = np.concatenate([rest, part])
                whole = len(joined) - len(joined) % self.length
                tokens, rest = tokens + len(part), joined[whole:].copy()  # a copy: a view keeps all of `joined`
                if whole:
                    yield {"tokens": joined[:whole].reshape(-1, self.length)}

        shards = write_shards(folder, block.prefix, token_columns(tokenizer, self.length), rows())
        root = f"{visible_name(block.files[0].root).rstrip('/')}/"
        return BlockReceipt(
            block=block.number,
            rows=sum(each.shard.rows for each in shards),
            parts={".": tuple(shards)},
            left_out={UNREADABLE: len(bad)} if bad else {},
            listed=tuple(
                LeftOut(place=each.place.removeprefix(root), reason=UNREADABLE, detail=each.reason)
                for each in bad[:MOST_LISTED]
            ),
            counts={DOCUMENTS: counter.documents, BYTES: counter.bytes, TOKENS: tokens},
            detail={REST: packed(rest), FIRST: str(bad[0]) if bad else ""},
        )


@lru_cache(maxsize=1)
def _open(file: Path, sha256: str) -> Tokenizer:
    tokenizer = open_tokenizer(file)
    assert tokenizer.fingerprint == sha256, f"{file} is the tokeniser of another import"
    return tokenizer


@dataclass
class PieceCounter:
    """Iterator over pieces that counts documents and bytes."""

    pieces: Iterable[TextPiece]
    documents: int = 0
    bytes: int = 0

    def __iter__(self) -> Iterator[TextPiece]:
        for piece in self.pieces:
            self.documents += piece.last
            self.bytes += piece.num_bytes
            yield piece


def encode(pieces: Iterable[TextPiece], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Tokenise pieces in their order: (tokens,) in the tokeniser's dtype, an end token behind each document.

    Pieces are joined to about PIECE_LENGTH characters, as many short documents cost less together.
    """
    end = np.array([tokenizer.end], tokenizer.dtype)
    parts: list[np.ndarray] = []
    length = 0
    for piece in pieces:
        parts += [tokenizer.ids(piece.text), end[: piece.last]]
        length += len(piece.text)
        if length >= PIECE_LENGTH:
            yield np.concatenate(parts)
            parts, length = [], 0
    if parts:
        yield np.concatenate(parts)
