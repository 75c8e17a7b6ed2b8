"""Store of a corpus: its documents as tokens, an end token behind each, packed to rows of one length."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np

from ditlab.data.block_imports.plan import MOST_LISTED, BlockReceipt, InputBlock, LeftOut
from ditlab.data.block_imports.runner import RefusedSource
from ditlab.data.block_imports.source_files import BadRecord, visible_name
from ditlab.data.stores.manifest import Column, Source, TextFacts, folder_name
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import WrittenStore, write_store
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
"""Keys of a receipt's detail: tokens that filled no row, in base64; the message on the first unreadable document."""


class Corpus(Protocol):
    """Documents that can be iterated over again and again."""

    @property
    def origin(self) -> str:
        """Name of the corpus in messages."""
        ...

    def pieces(self) -> Iterator[TextPiece]:
        """Iterate over the pieces of the documents (`documents.pieces`)."""
        ...


@dataclass(frozen=True)
class TokenStoreRequest:
    """Tokeniser and row length of a token store."""

    tokenizer: str
    """`bytes`, `bpe`, a file, a folder, or a name on the Hugging Face hub."""
    vocabulary: int
    """Vocabulary of a BPE that is learned here."""
    length: int
    """Tokens of a row."""
    knobs: str = "--"
    """Prefix of a knob's name in messages."""

    @property
    def label(self) -> str:
        """Tokeniser and row length as part of a folder's name: `bytes-1024`, `bpe-4096-1024`."""
        path = Path(self.tokenizer)
        stem = path.parent.name if path.name == TOKENIZER_NAME and path.parent.name else path.name
        name = f"bpe-{self.vocabulary}" if self.tokenizer == "bpe" else folder_name(stem.removesuffix(".json"))
        return f"{name}-{self.length}"


def write_token_store(
    out: Path,
    name: str,
    corpus: Corpus,
    request: TokenStoreRequest,
    source: Callable[[], Source],
    description: str,
    progress: Progress,
) -> WrittenStore:
    """Write `out/name`: column `tokens` (length,), uint8, uint16 or int32, as the vocabulary needs; and the tokeniser.

    The corpus is read once to find every error before anything is written, a second time where a BPE is learned, and a
    last time to tokenise it. `source` is called once the first reading has ended. Memory does not grow with the corpus
    (but for the distinct words that a BPE learns from). Raises UserError for a corpus that cannot be read or has no
    text, a tokeniser that cannot be read or fetched, and a length beyond the corpus.
    """
    scan = _scan(corpus, progress)
    origin = source()
    tokenizer = request_tokenizer(request, corpus, progress, scan)
    packer = Packer(request.length)
    rows = packer.rows(encode(_with_progress(corpus.pieces(), "tokenising", scan.bytes, progress), tokenizer))
    first = next(rows, None)
    if first is None:
        raise UserError(too_short(request.knobs, request.length, corpus.origin, packer.tokens))
    return write_store(
        out / name,
        token_columns(tokenizer, request.length),
        ({"tokens": part} for part in chain([first], rows)),
        name=name,
        description=description,
        source=origin,
        text=lambda: TextFacts(
            tokenizer=request.tokenizer,
            documents=scan.documents,
            bytes=scan.bytes,
            tokens=packer.tokens,
            dropped=packer.dropped,
        ),
        attachments={TOKENIZER_NAME: tokenizer.content},
    )


def too_short(knobs: str, length: int, origin: str, tokens: int) -> str:
    """Return the message on a corpus that fills no row."""
    return (
        f"{knobs}length={length} is longer than the whole corpus: {origin} gives {tokens:,} tokens; set {knobs}length "
        f"to {tokens} or less, or add text."
    )


def _scan(corpus: Corpus, progress: Progress) -> PieceCounter:
    """Read a corpus once, and count its documents and the bytes of their text."""
    counter = PieceCounter(corpus.pieces())
    for _ in _with_progress(counter, "reading", None, progress):
        pass
    if not counter.bytes:
        raise UserError(f"{corpus.origin} holds no text; name files that hold some.")
    return counter


def request_tokenizer(
    request: TokenStoreRequest, corpus: Corpus, progress: Progress, size: PieceCounter | None = None
) -> Tokenizer:
    """Open the tokeniser of a request, or learn it from a corpus, whose size is measured first where it is not given.

    Raises UserError as `write_token_store` does.
    """
    name = request.tokenizer
    if name == "bytes":
        return ByteTokenizer()
    if name == "bpe":
        total = (size or _scan(corpus, progress)).bytes
        every = -(-total // LEARNING_BYTES)
        read = _with_progress(corpus.pieces(), "learning the vocabulary", total, progress)
        return learn_bpe((piece.text for number, piece in enumerate(read) if not number % every), request.vocabulary)
    path = Path(name).expanduser()
    if path.exists() or name.endswith(".json") or name.startswith((".", "/", "~")):
        return open_tokenizer(path)
    return fetch_tokenizer(name)


def _with_progress(read: Iterable[TextPiece], what: str, total: int | None, progress: Progress) -> Iterator[TextPiece]:
    """Iterate over pieces, with a progress report of their bytes after each."""
    done = 0
    for piece in read:
        yield piece
        done += piece.num_bytes
        progress(what, done, total)


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
        packer, bad = Packer(self.length), list[BadRecord]()

        def leave_out(record: BadRecord) -> None:
            if self.refuses:
                raise RefusedSource(str(record))
            bad.append(record)

        counter = PieceCounter(block_pieces(block, self.column, leave_out))
        rows = ({"tokens": part} for part in packer.rows(encode(counter, tokenizer)))
        shards = write_shards(folder, block.prefix, token_columns(tokenizer, self.length), rows)
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
            counts={DOCUMENTS: counter.documents, BYTES: counter.bytes, TOKENS: packer.tokens},
            detail={
                REST: b64encode(packer.rest(tokenizer.dtype).tobytes()).decode(),
                FIRST: str(bad[0]) if bad else "",
            },
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


def joined_rests(receipts: Sequence[BlockReceipt], dtype: str, length: int) -> np.ndarray:
    """Return rows (rows, length) of the tokens that filled none in their blocks, block after block."""
    parts = [np.frombuffer(b64decode(receipt.detail[REST]), dtype) for receipt in receipts]
    joined = np.concatenate([np.empty(0, dtype), *parts])
    return joined[: len(joined) // length * length].reshape(-1, length)


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
