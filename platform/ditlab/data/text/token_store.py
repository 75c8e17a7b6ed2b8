"""Store of a corpus: its documents as tokens, an end token behind each, packed to rows of one length."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from ditlab.data.processes import fitting_processes
from ditlab.data.stores.manifest import Column, Source, TextFacts
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore, write_store
from ditlab.data.text.huggingface_tokenizer import fetch_tokenizer, learn_bpe
from ditlab.data.text.pieces import Document, TextPiece, pieces
from ditlab.data.text.tokenizer import TOKENIZER_NAME, ByteTokenizer, Tokenizer
from ditlab.data.text.tokenizer_files import open_tokenizer
from ditlab.data.text.tokenizing import Packer, encode
from ditlab.errors import UserError
from ditlab.progress import Progress

DEFAULT_VOCABULARY = 4096
"""Vocabulary of a BPE, the default in `spec.importing` and `spec.data`."""
LEARNING_BYTES = 2**29
"""Bytes of text that a BPE learns from: of a corpus n times as large, every n-th piece."""


class Corpus(Protocol):
    """Documents that can be iterated over again and again."""

    @property
    def origin(self) -> str:
        """Name of the corpus in messages."""
        ...

    def documents(self) -> Iterator[Document]:
        """Iterate over the documents, each of which must be used up before the next."""
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
    processes: int | None = None
    """Processes that tokenise; None: as many as the cores and the text allow."""

    @property
    def label(self) -> str:
        """Tokeniser and row length as part of a folder's name: `bytes-1024`, `bpe-4096-1024`."""
        path = Path(self.tokenizer)
        stem = path.parent.name if path.name == TOKENIZER_NAME and path.parent.name else path.name
        name = f"bpe-{self.vocabulary}" if self.tokenizer == "bpe" else folder_name(stem.removesuffix(".json"))
        return f"{name}-{self.length}"


@dataclass(frozen=True)
class CorpusSize:
    """Size of a corpus, as a first reading finds it."""

    documents: int
    """Documents with text."""
    bytes: int
    """Bytes of the text in UTF-8."""


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
    tokenizer = _tokenizer(corpus, scan, request, progress)
    processes = 1 if tokenizer.kind == "bytes" else request.processes or fitting_processes(scan.bytes)
    packer = Packer(request.length)
    stream = encode(_with_progress(_pieces(corpus), "tokenising", scan.bytes, progress), tokenizer, processes)
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


def _pieces(corpus: Corpus) -> Iterator[TextPiece]:
    return chain.from_iterable(map(pieces, corpus.documents()))


def _scan(corpus: Corpus, progress: Progress) -> CorpusSize:
    documents = size = 0
    for piece in _with_progress(_pieces(corpus), "reading", None, progress):
        documents += piece.last
        size += _num_bytes(piece.text)
    if not size:
        raise UserError(f"{corpus.origin} holds no text; name files that hold some.")
    return CorpusSize(documents, size)


def _tokenizer(corpus: Corpus, scan: CorpusSize, request: TokenStoreRequest, progress: Progress) -> Tokenizer:
    name = request.tokenizer
    if name == "bytes":
        return ByteTokenizer()
    if name == "bpe":
        every = -(-scan.bytes // LEARNING_BYTES)
        read = _with_progress(_pieces(corpus), "learning the vocabulary", scan.bytes, progress)
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
        done += _num_bytes(piece.text)
        progress(what, done, total)


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
