"""The store of a corpus: its documents as tokens, an end token behind each, packed to rows of one length."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from ditlab.data.importing import Imported, Progress, write_store
from ditlab.data.processes import fitting_processes
from ditlab.data.stores.manifest import Column, Source, TextFacts
from ditlab.data.text.documents import Document, Piece, pieces
from ditlab.data.text.tokenizer import TOKENIZER_NAME, ByteTokenizer, Tokenizer, open_tokenizer
from ditlab.data.text.tokenizing import Packer, encode
from ditlab.errors import UserError

DEFAULT_VOCABULARY = 4096
"""Of a BPE; as `spec.importing` and `spec.data` say."""
LEARNING_BYTES = 2**29
"""Text that a BPE learns from: of a larger corpus every so many-th piece."""


class Corpus(Protocol):
    """Documents that can be gone through again and again."""

    @property
    def origin(self) -> str:
        """How messages name it."""
        ...

    def documents(self) -> Iterator[Document]:
        """One after the other, each to be used up before the next."""
        ...


@dataclass(frozen=True)
class TextRequest:
    tokenizer: str
    """`bytes`, `bpe`, a file, a folder, or a name on the Hugging Face hub."""
    vocabulary: int
    """Of a BPE that is learned here."""
    length: int
    """Tokens of a row."""
    knobs: str = "--"
    """What stands before the name of a knob in messages."""
    processes: int | None = None
    """That tokenise; None: as many as the cores and the text allow."""

    @property
    def label(self) -> str:
        """What the store's tokens are, as part of a folder's name: `bytes-1024`, `bpe-4096-1024`."""
        path = Path(self.tokenizer)
        stem = path.parent.name if path.name == TOKENIZER_NAME and path.parent.name else path.name
        name = f"bpe-{self.vocabulary}" if self.tokenizer == "bpe" else folder_name(stem.removesuffix(".json"))
        return f"{name}-{self.length}"


@dataclass(frozen=True)
class Scan:
    """What a first reading of a corpus finds."""

    documents: int
    """Those with text."""
    bytes: int


def write_text_store(
    out: Path, name: str, corpus: Corpus, request: TextRequest, source: Source, description: str, progress: Progress
) -> Imported:
    """Write `out/name`: column `tokens` (length,), uint8, uint16 or int32, as the vocabulary needs; and the tokeniser.

    The corpus is read through once, so that all that is wrong with it is told before anything is written, a second
    time where a BPE is learned, and a last time to tokenise it. What is held in memory does not grow with the corpus
    (but for the distinct words that a BPE learns from). Raises UserError for a corpus that cannot be read or has no
    text, a tokeniser that cannot be had, and a length beyond the corpus.
    """
    scan = _scan(corpus, progress)
    tokenizer = _tokenizer(corpus, scan, request, progress)
    processes = 1 if tokenizer.kind == "bytes" else request.processes or fitting_processes(scan.bytes)
    packer = Packer(request.length)
    stream = encode(_told(_pieces(corpus), "tokenising", scan.bytes, progress), tokenizer, processes)
    rows = packer.rows(stream)
    first = next(rows, None)
    if first is None:
        raise UserError(
            f"{request.knobs}length={request.length} is longer than the whole corpus: {corpus.origin} gives "
            f"{packer.tokens:,} tokens; set {request.knobs}length to {packer.tokens} or less, or add text."
        )
    column = Column(
        dtype=tokenizer.dtype,
        shape=(request.length,),
        num_classes=tokenizer.vocabulary,
        unit="token",
        description=f"documents joined by token {tokenizer.end}",
    )
    return write_store(
        out / name,
        {"tokens": column},
        ({"tokens": part} for part in chain([first], rows)),
        name=name,
        description=description,
        source=source,
        text=lambda: TextFacts(
            tokenizer=request.tokenizer,
            documents=scan.documents,
            bytes=scan.bytes,
            tokens=packer.tokens,
            dropped=packer.dropped,
        ),
        attachments={TOKENIZER_NAME: tokenizer.content},
    )


def folder_name(text: str) -> str:
    """The text as part of a folder's name, what such a name should not hold replaced by `_`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def _pieces(corpus: Corpus) -> Iterator[Piece]:
    return chain.from_iterable(map(pieces, corpus.documents()))


def _scan(corpus: Corpus, progress: Progress) -> Scan:
    documents = size = 0
    for piece in _told(_pieces(corpus), "reading", None, progress):
        documents += piece.last
        size += _size(piece.text)
    if not size:
        raise UserError(f"{corpus.origin} holds no text; name files that hold some.")
    return Scan(documents, size)


def _tokenizer(corpus: Corpus, scan: Scan, request: TextRequest, progress: Progress) -> Tokenizer:
    from ditlab.data.text.huggingface_tokenizer import fetch_tokenizer, learn_bpe

    asked = request.tokenizer
    if asked == "bytes":
        return ByteTokenizer()
    if asked == "bpe":
        every = -(-scan.bytes // LEARNING_BYTES)
        read = _told(_pieces(corpus), "learning the vocabulary", scan.bytes, progress)
        return learn_bpe((piece.text for number, piece in enumerate(read) if not number % every), request.vocabulary)
    path = Path(asked).expanduser()
    if path.exists() or asked.endswith(".json") or asked.startswith((".", "/", "~")):
        return open_tokenizer(path)
    return fetch_tokenizer(asked)


def _told(read: Iterable[Piece], what: str, total: int | None, progress: Progress) -> Iterator[Piece]:
    """Pieces as they come, their bytes told to whoever watches."""
    done = 0
    for piece in read:
        yield piece
        done += _size(piece.text)
        progress(what, done, total)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
