"""Import of text by blocks: a corpus as rows of tokens of one length, an end token behind each
document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath

import numpy as np

from ditlab.data.import_blocks import (
    BlockReceipt,
    InputBlock,
    ProcessExecutor,
    RefusedSource,
    block_bytes,
    dropped_of,
    finish_import,
    imported_blocks,
    packed,
    sums_of,
    unpacked,
)
from ditlab.data.importing import ImportRequest
from ditlab.data.source_files import SourceFile, endings, list_source, source_name
from ditlab.data.sources.records import (
    TEXT_KINDS,
    SourceRecord,
    files_level,
    record_blocks,
    record_files,
)
from ditlab.data.sources.tables import other_columns
from ditlab.data.stores.manifest import Column, Source, TextFacts, folder_name
from ditlab.data.stores.receipt import DroppedRecord, DroppedRecords, ReceiptLevel, make_receipt
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import WrittenStore, refuse_bucketed_store
from ditlab.data.text.documents import (
    DUPLICATE,
    PIECE_LENGTH,
    DocumentRules,
    TextPiece,
    beginning,
    block_pieces,
    mark_repeats,
    without_repeats,
)
from ditlab.data.text.tokenizer import (
    TOKENIZER_NAME,
    ByteTokenizer,
    Tokenizer,
    fetch_tokenizer,
    learn_bpe,
    load_tokenizer,
    open_tokenizer,
)
from ditlab.errors import UserError
from ditlab.progress import Progress
from ditlab.spec.importing import TextOptions

DEFAULT_VOCABULARY = 4096
"""Vocabulary of a BPE, the default in `spec.importing` and `spec.data`."""
LEARNING_BYTES = 2**29
"""Bytes of text that a BPE learns from: of a corpus n times as large, every n-th piece."""
EMPTY = "without text"
"""Reason of documents that hold none, which are always dropped."""
REST = "rest"
FIRST = "first problem"
"""Keys of a receipt's detail: tokens that filled no row; the message on the first unreadable
document.
"""
READ_TO_LEARN = 16
"""Times LEARNING_BYTES of input that are read to learn a BPE; of a larger source, every n-th
block.
"""


def rows_label(tokenizer: str, vocabulary: int, length: int) -> str:
    """Return tokeniser and row length as part of a folder's name: `bytes-1024`, `bpe-4096-1024`."""
    if tokenizer == "bpe":
        return f"bpe-{vocabulary}-{length}"
    path = Path(tokenizer)
    stem = path.name
    if path.name == TOKENIZER_NAME and path.parent.name:
        stem = path.parent.name
    return f"{folder_name(stem.removesuffix('.json'))}-{length}"


def too_short(option: str, length: int, origin: str, tokens: int) -> str:
    """Return the message on a corpus that fills no row; `option` sets the length: `--length`."""
    return (
        f"{option}={length} is longer than the whole corpus: {origin} gives {tokens:,} tokens; "
        f"set {option} to {tokens} or less, or add text."
    )


def request_tokenizer(
    name: str,
    vocabulary: int,
    read: Callable[[], Iterable[TextPiece]],
    origin: str,
    progress: Progress,
) -> Tokenizer:
    """Open the tokeniser of a name: `bytes`, `bpe`, a file, a folder, or a name on the Hugging Face
    hub.

    A BPE of `vocabulary` tokens is learned from the corpus, whose pieces `read` gives: once to
    measure it, once to learn. Raises UserError for a tokeniser that cannot be read or fetched, and
    for a corpus (`origin`) without text.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name != "bpe":
        path = Path(name).expanduser()
        is_path = path.exists() or name.endswith(".json") or name.startswith((".", "/", "~"))
        if is_path:
            return open_tokenizer(path)
        return fetch_tokenizer(name)
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
    """Rules of an import of text, without state."""

    tokenizer: bytes
    """Content of the tokeniser's file."""
    column: str
    length: int
    """Tokens of a row."""
    refuses: bool
    """True where no document may be dropped."""
    limit: int | None = None
    """Bytes of text of a block that are read; None: all."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Tokenise a block's documents and write their rows; the tokens behind the last go into the
        receipt.

        Raises RefusedSource for a document that may not be dropped, and UserError as
        `block_pieces` does.
        """
        tokenizer = _load_once(self.tokenizer, TOKENIZER_NAME)
        dropped = DroppedRecords()
        first_problem = ""

        def drop(record: SourceRecord) -> None:
            nonlocal first_problem
            if record.problem is None:
                dropped.add(DroppedRecord(place=record.place, reason=EMPTY))
                return
            message = str(record.error())
            if self.refuses:
                raise RefusedSource(message)
            first_problem = first_problem or message
            dropped.add(record.dropped())

        def drop_repeat(place: str) -> None:
            dropped.add(DroppedRecord(place=place, reason=DUPLICATE))

        rest = np.empty(0, tokenizer.dtype)
        counts = {"documents": 0, "bytes": 0, "tokens": 0}

        def counted() -> Iterator[TextPiece]:
            found = without_repeats(
                block_pieces(block, self.column, drop), set(block.detail or ()), drop_repeat
            )
            for piece in beginning(found, self.limit):
                counts["documents"] += piece.last
                counts["bytes"] += piece.num_bytes
                yield piece

        def rows() -> Iterator[Mapping[str, np.ndarray]]:
            nonlocal rest
            for part in encode(counted(), tokenizer):
                joined = np.concatenate([rest, part])
                whole = len(joined) - len(joined) % self.length
                rest = joined[whole:].copy()  # a view would keep all of `joined`
                counts["tokens"] += len(part)
                if whole:
                    yield {"tokens": joined[:whole].reshape(-1, self.length)}

        shards = write_shards(folder, block.prefix, token_columns(tokenizer, self.length), rows())
        return BlockReceipt(
            block=block.number,
            rows=sum(each.shard.rows for each in shards),
            parts={".": tuple(shards)},
            left_out=dropped.counts,
            listed=tuple(dropped.first),
            counts=counts,
            detail={REST: packed(rest), FIRST: first_problem},
        )


_load_once = lru_cache(maxsize=1)(load_tokenizer)


def encode(pieces: Iterable[TextPiece], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Tokenise pieces in their order: (tokens,) in the tokeniser's dtype, an end token behind each
    document.
    """
    end = np.array([tokenizer.end], tokenizer.dtype)
    parts: list[np.ndarray] = []
    length = 0
    for piece in pieces:
        parts += [tokenizer.ids(piece.text), end[: piece.last]]
        length += len(piece.text)
        if length >= PIECE_LENGTH:
            yield np.concatenate(parts)
            parts = []
            length = 0
    if parts:
        yield np.concatenate(parts)


def import_text(request: ImportRequest[TextOptions]) -> WrittenStore:
    """Write one store: column `tokens` (--length,), uint8, uint16 or int32, as the vocabulary
    needs; and the tokeniser.

    A document whose text repeats an earlier one's is dropped, unless the options keep it; for that
    the source is read twice. What fills no row of a block is joined, block after block, to the last
    rows. The store depends on the source and the options alone. Memory does not grow with the
    source, but for 28 bytes a document, and the distinct words that a BPE learns from. Raises
    UserError for a source that cannot be read or has no text, a tokeniser that cannot be read or
    fetched, and a length beyond the source.
    """
    options = request.options
    origin = f"--source={options.source}"
    length = options.length
    refuses = options.unreadable == "refuse"
    blocks, files, files_left_out = open_text_source(options.source)
    vocabulary = options.vocabulary or DEFAULT_VOCABULARY
    stem = PurePosixPath(source_name(options.source)).stem
    label = rows_label(options.tokenizer, vocabulary, length)
    path = request.out / (options.name or f"text-{folder_name(stem)}-{label}")
    refuse_bucketed_store(path)

    limit = request.limit and request.limit * length

    def read() -> Iterator[TextPiece]:
        return beginning(_pieces_to_learn(blocks, options.column, refuses), limit)

    tokenizer = request_tokenizer(options.tokenizer, vocabulary, read, origin, request.progress)
    rules = TextRules(tokenizer.content, options.column, length, refuses, limit)
    described = {
        "tokenizer": tokenizer.fingerprint,
        "column": options.column,
        "length": length,
        "unreadable": options.unreadable,
    }
    executor = request.executor or ProcessExecutor(options.processes, "tokenises")
    with ExitStack() as unfinished:
        if not options.keep_duplicates:
            _, documents_found = unfinished.enter_context(
                imported_blocks(
                    path,
                    "text documents",
                    blocks,
                    {"column": options.column},
                    DocumentRules(options.column, limit),
                    executor,
                    request.progress,
                    "comparing documents",
                )
            )
            blocks = mark_repeats(blocks, documents_found)
        folder, receipts = unfinished.enter_context(
            imported_blocks(
                path, "text", blocks, described, rules, executor, request.progress, "tokenising"
            )
        )
        sums = sums_of(receipts)
        if not sums["bytes"]:
            raise _without_text(options, blocks[0], receipts)
        if sums["tokens"] < length:
            raise RefusedSource(too_short("--length", length, origin, sums["tokens"]))
        rest = np.concatenate(
            [unpacked(receipt.detail[REST], tokenizer.dtype) for receipt in receipts]
        )
        dropped = sums["tokens"] % length
        columns = token_columns(tokenizer, length)
        rows = rest[: len(rest) - dropped].reshape(-1, length)
        left = dropped_of(receipts)
        documents = ReceiptLevel(
            unit="documents", used={"documents": sums["documents"]}, left_out=left.counts
        )
        name = source_name(options.source)
        note = f"read from {name}"
        num_files = len(_files_of(blocks))
        if num_files > 1:
            note += f" ({num_files:,} files)"
        batches = [{"tokens": rows}] if len(rows) else []
        return finish_import(
            path,
            folder,
            receipts,
            columns,
            more=write_shards(folder, "rest", columns, batches),
            description=f"text of {name} in rows of {length:,} tokens",
            source=Source(kind="text", note=note),
            receipt=make_receipt([files, documents], [*files_left_out, *left.first]),
            text=TextFacts(tokenizer=options.tokenizer, dropped=dropped, **sums),
            attachments={TOKENIZER_NAME: tokenizer.content},
        )


def _files_of(blocks: Sequence[InputBlock]) -> set[SourceFile]:
    return set(chain.from_iterable(block.files for block in blocks))


def _without_text(
    options: TextOptions, block: InputBlock, receipts: Sequence[BlockReceipt]
) -> RefusedSource:
    """Return the error for a source without text: the first document's, if one cannot be read."""
    first = next(filter(None, (receipt.detail[FIRST] for receipt in receipts)), "")
    if first and block.kind == "parquet":
        first = f"{first.removesuffix('.')} ({other_columns(block.files[0], options.column)})."
    return RefusedSource(
        first or f"--source={options.source} holds no text; name files that hold some."
    )


def open_text_source(source: str) -> tuple[list[InputBlock], ReceiptLevel, list[DroppedRecord]]:
    """List a source's files of documents, as blocks and as `files_level` counts them. Raises
    UserError for none.
    """
    listing = list_source(source)
    files = record_files([file for file in listing if not file.set_aside], TEXT_KINDS)
    if files:
        blocks = record_blocks(files, block_bytes(sum(file.size for file in files)))
        return blocks, *files_level(listing, {"read": files})
    known = f"{', '.join(f'.{kind}' for kind in TEXT_KINDS)} file"
    raise UserError(
        f"--source={source} holds no {known} ({endings(listing)}); name a file, or a folder of "
        "some."
    )


def _pieces_to_learn(
    blocks: Sequence[InputBlock], column: str, refuses: bool
) -> Iterator[TextPiece]:
    """Iterate over the pieces that a BPE learns from: all, or of a large source as many as take a
    few minutes to read.

    Raises UserError for the first that cannot be read where there is no document beside it, or,
    with `refuses`, in any case.
    """
    size = sum(file.size for file in _files_of(blocks))
    bad: list[UserError] = []

    def drop(record: SourceRecord) -> None:
        if record.problem is None:
            return
        bad.append(record.error())
        if refuses:
            raise bad[0]

    found = False
    for block in blocks[:: max(1, -(-size // (READ_TO_LEARN * LEARNING_BYTES)))]:
        for piece in block_pieces(block, column, drop):
            found = True
            yield piece
        del bad[1:]
    if bad and not found:
        raise bad[0]
