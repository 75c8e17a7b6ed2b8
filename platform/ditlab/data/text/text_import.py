"""Import of text by blocks: a tokeniser, rows of each block, the rows of what is left, manifest."""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from ditlab.data.block_imports.plan import ImportPlan, InputBlock, block_bytes, total_counts, unpacked
from ditlab.data.block_imports.runner import (
    ProcessExecutor,
    RefusedSource,
    finish_import,
    refuse_bucketed_store,
    run_blocks,
    unfinished_import,
)
from ditlab.data.block_imports.source_files import BadRecord, list_source, source_name, visible_name
from ditlab.data.importing import ImportRequest
from ditlab.data.sources.records import TEXT_KINDS, record_blocks, record_files
from ditlab.data.stores.manifest import Source, TextFacts, folder_name
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import LeftOutRecords, WrittenStore
from ditlab.data.text.documents import TextPiece, block_pieces
from ditlab.data.text.token_store import (
    BYTES,
    DEFAULT_VOCABULARY,
    DOCUMENTS,
    FIRST,
    LEARNING_BYTES,
    REST,
    TOKENS,
    UNREADABLE,
    TextRules,
    request_tokenizer,
    rows_label,
    token_columns,
    too_short,
)
from ditlab.data.text.tokenizer import TOKENIZER_NAME
from ditlab.errors import UserError
from ditlab.spec.importing import TextOptions
from ditlab.storage.files import writing_into

LISTED = 5
"""Files and documents that cannot be read, listed in a store's note."""
READ_TO_LEARN = 16
"""Times LEARNING_BYTES of input that are read to learn a BPE; of a larger source, every n-th block."""
REST_PREFIX = "rest"
"""Prefix of the shards of rows that several blocks share."""


def import_text(request: ImportRequest[TextOptions]) -> WrittenStore:
    """Write one store: column `tokens` (--length,), uint8, uint16 or int32, as the vocabulary needs; and the tokeniser.

    The tokeniser is opened, or learned from the source, first. Then each block of the source is tokenised by itself,
    in any number of processes; what fills no row of a block is joined, block after block, to the last rows. The store
    depends on the source and the options alone, and a killed import goes on from its whole blocks. Memory does not
    grow with the source (but for the distinct words that a BPE learns from). Raises UserError for a source that cannot
    be read or has no text, a tokeniser that cannot be read or fetched, and a length beyond the source.
    """
    options = request.options
    origin, length, refuses = f"--source={options.source}", options.length, options.unreadable == "refuse"
    blocks = open_text_source(options.source)
    vocabulary = options.vocabulary or DEFAULT_VOCABULARY
    stem = PurePosixPath(source_name(options.source)).stem
    label = rows_label(options.tokenizer, vocabulary, length)
    path = request.out / (options.name or f"text-{folder_name(stem)}-{label}")
    refuse_bucketed_store(path)

    def read() -> Iterator[TextPiece]:
        return _pieces_to_learn(blocks, options.column, refuses)

    tokenizer = request_tokenizer(options.tokenizer, vocabulary, read, origin, request.progress)
    rules = TextRules(tokenizer.fingerprint, options.column, length, refuses)
    described = {"tokenizer": tokenizer.fingerprint, "column": options.column, "length": length}
    plan = ImportPlan.of("text", blocks, {**described, "unreadable": options.unreadable})
    folder = plan.folder(path)
    executor = request.executor or ProcessExecutor(options.processes, "tokenises")
    with unfinished_import(folder):
        with writing_into(path):
            tokenizer.save(folder)
        receipts = run_blocks(plan, rules, folder, executor, request.progress, "tokenising", "rows")
        sums = total_counts(receipt.counts for receipt in receipts)
        if not sums.get(BYTES):
            first = next((receipt.detail[FIRST] for receipt in receipts if receipt.detail[FIRST]), "")
            raise RefusedSource(first or f"{origin} holds no text; name files that hold some.")
        if sums[TOKENS] < length:
            raise RefusedSource(too_short("--length", length, origin, sums[TOKENS]))
        rest = np.concatenate([unpacked(receipt.detail[REST], tokenizer.dtype) for receipt in receipts])
        dropped, columns = sums[TOKENS] % length, token_columns(tokenizer, length)
        rows = rest[: len(rest) - dropped].reshape(-1, length)
        problems = [f"{each.place}: {each.detail}" for receipt in receipts for each in receipt.listed]
        num = sum(sum(receipt.left_out.values()) for receipt in receipts)
        name = visible_name(source_name(options.source))
        num_files = len({file for block in blocks for file in block.files})
        notes = [f"read from {name}" + (f" ({num_files:,} files)" if num_files > 1 else "")]
        if num:
            more = f", and {num - LISTED:,} more" if num > LISTED else ""
            notes.append(visible_name(f"{num:,} skipped: {', '.join(problems[:LISTED])}{more}"))
        return finish_import(
            path,
            folder,
            receipts,
            columns,
            more=write_shards(folder, REST_PREFIX, columns, [{"tokens": rows}] if len(rows) else []),
            description=f"text of {name} in rows of {length:,} tokens",
            source=Source(kind="text", note="; ".join(notes)),
            left_out=[LeftOutRecords(UNREADABLE, num, sums[DOCUMENTS] + num, next(iter(problems), ""))],
            text=TextFacts(
                tokenizer=options.tokenizer,
                documents=sums[DOCUMENTS],
                bytes=sums[BYTES],
                tokens=sums[TOKENS],
                dropped=dropped,
            ),
            attachments={TOKENIZER_NAME: tokenizer.content},
        )


def open_text_source(source: str) -> list[InputBlock]:
    """List a source's files of documents, and cut them into blocks. Raises UserError where there are none."""
    listing = list_source("--source", source)
    files = record_files("--source", listing, TEXT_KINDS)
    if files:
        return record_blocks(files, block_bytes(sum(each.file.size for each in files)))
    known = f"{', '.join(f'.{kind}' for kind in sorted(TEXT_KINDS))} file"
    if len(listing.files) == 1 and not Path(source).is_dir():
        raise UserError(f"--source={source} is no {known}; rename it, or name another.")
    raise UserError(f"--source={source} holds no {known}; name a file, or a folder that holds some.")


def _pieces_to_learn(blocks: Sequence[InputBlock], column: str, refuses: bool) -> Iterator[TextPiece]:
    """Iterate over the pieces that a BPE learns from: all, or of a large source as many as take a few minutes to read.

    Raises the first BadRecord where there is no document beside it, or, with `refuses`, in any case.
    """
    size = sum(
        block.bytes if block.stop is None or block.kind == "parquet" else block.stop - block.start for block in blocks
    )
    bad: list[BadRecord] = []

    def leave_out(record: BadRecord) -> None:
        if refuses:
            raise record
        bad.append(record)

    found = False
    for block in blocks[:: max(1, -(-size // (READ_TO_LEARN * LEARNING_BYTES)))]:
        for piece in block_pieces(block, column, leave_out):
            found = True
            yield piece
        del bad[1:]
    if bad and not found:
        raise bad[0]
