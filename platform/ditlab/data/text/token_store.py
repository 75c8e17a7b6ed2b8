"""Store of a corpus: its documents as tokens, an end token behind each, packed to rows of one length."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from ditlab.data.processes import fitting_processes
from ditlab.data.stores.manifest import Source, TextFacts
from ditlab.data.stores.plain_names import folder_name
from ditlab.data.stores.written import WrittenStore, write_store
from ditlab.data.text.block_rules import token_columns
from ditlab.data.text.huggingface_tokenizer import fetch_tokenizer, learn_bpe
from ditlab.data.text.pieces import TextPiece
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

    def pieces(self) -> Iterator[TextPiece]:
        """Iterate over the pieces of the documents (`pieces.pieces`)."""
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
    tokenizer = request_tokenizer(request, corpus, progress, scan)
    processes = 1 if tokenizer.kind == "bytes" else request.processes or fitting_processes(scan.bytes)
    packer = Packer(request.length)
    stream = encode(_with_progress(corpus.pieces(), "tokenising", scan.bytes, progress), tokenizer, processes)
    rows = packer.rows(stream)
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


def _scan(corpus: Corpus, progress: Progress) -> CorpusSize:
    documents = size = 0
    for piece in _with_progress(corpus.pieces(), "reading", None, progress):
        documents += piece.last
        size += piece.num_bytes
    if not size:
        raise UserError(f"{corpus.origin} holds no text; name files that hold some.")
    return CorpusSize(documents, size)


def request_tokenizer(
    request: TokenStoreRequest, corpus: Corpus, progress: Progress, size: CorpusSize | None = None
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
