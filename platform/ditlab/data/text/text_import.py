"""Import of text by blocks: a tokeniser, rows of each block, the rows of what is left, manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ditlab.data.block_imports.plan import BlockReceipt, ImportPlan, InputBlock, block_bytes, total_counts
from ditlab.data.block_imports.runner import (
    ProcessExecutor,
    RefusedSource,
    finish_import,
    refuse_bucketed_store,
    run_blocks,
    unfinished_import,
)
from ditlab.data.block_imports.source_files import list_source, source_name, visible_name
from ditlab.data.importing import ImportRequest
from ditlab.data.sources.records import TEXT_KINDS, record_blocks, record_files
from ditlab.data.stores.manifest import Source, TextFacts, folder_name
from ditlab.data.stores.writer import write_shards
from ditlab.data.stores.writing import LeftOutRecords, WrittenStore
from ditlab.data.text.documents import BlockCorpus
from ditlab.data.text.token_store import (
    BYTES,
    DEFAULT_VOCABULARY,
    DOCUMENTS,
    FIRST,
    LEARNING_BYTES,
    TOKENS,
    UNREADABLE,
    TextRules,
    TokenStoreRequest,
    joined_rests,
    request_tokenizer,
    token_columns,
    too_short,
)
from ditlab.data.text.tokenizer import TOKENIZER_NAME, Tokenizer
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
    blocks = open_text_source(options.source)
    tokens = TokenStoreRequest(options.tokenizer, options.vocabulary or DEFAULT_VOCABULARY, options.length)
    stem = PurePosixPath(source_name(options.source)).stem
    path = request.out / (options.name or f"text-{folder_name(stem)}-{tokens.label}")
    refuse_bucketed_store(path)
    refuses = options.unreadable == "refuse"
    corpus = BlockCorpus(options.source, _read_to_learn(blocks), options.column, refuses)
    tokenizer = request_tokenizer(tokens, corpus, request.progress)
    rules = TextRules(tokenizer.fingerprint, options.column, options.length, refuses)
    described = {"tokenizer": tokenizer.fingerprint, "column": options.column, "length": options.length}
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
            raise RefusedSource(first or f"--source={options.source} holds no text; name files that hold some.")
        if sums[TOKENS] < options.length:
            raise RefusedSource(too_short("--", options.length, f"--source={options.source}", sums[TOKENS]))
        return _finish(path, plan, receipts, tokenizer, sums, options)


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


def _read_to_learn(blocks: Sequence[InputBlock]) -> Sequence[InputBlock]:
    """Return the blocks that a BPE learns from: all, or of a large source as many as can be read in a few minutes."""
    size = sum(block.bytes if block.stop is None or block.kind == "parquet" else block.stop - block.start
               for block in blocks)  # fmt: skip
    return blocks[:: max(1, -(-size // (READ_TO_LEARN * LEARNING_BYTES)))]


def _finish(
    path: Path,
    plan: ImportPlan,
    receipts: Sequence[BlockReceipt],
    tokenizer: Tokenizer,
    sums: Mapping[str, int],
    options: TextOptions,
) -> WrittenStore:
    folder, columns = plan.folder(path), token_columns(tokenizer, options.length)
    rests = joined_rests(receipts, tokenizer.dtype, options.length)
    problems = [f"{each.place}: {each.detail}" for receipt in receipts for each in receipt.listed]
    name = visible_name(source_name(options.source))
    num_files = len({file for block in plan.blocks for file in block.files})
    origin = f"read from {name}" + (f" ({num_files:,} files)" if num_files > 1 else "")
    num = sum(sum(receipt.left_out.values()) for receipt in receipts)
    return finish_import(
        path,
        folder,
        receipts,
        columns,
        more=write_shards(folder, REST_PREFIX, columns, [{"tokens": rests}] if len(rests) else []),
        description=f"text of {name} in rows of {options.length:,} tokens",
        source=Source(kind="text", note="; ".join(filter(None, [origin, _left_out(num, problems)]))),
        left_out=[LeftOutRecords(UNREADABLE, num, sums[DOCUMENTS] + num, next(iter(problems), ""))],
        text=TextFacts(
            tokenizer=options.tokenizer,
            documents=sums[DOCUMENTS],
            bytes=sums[BYTES],
            tokens=sums[TOKENS],
            dropped=sums[TOKENS] % options.length,
        ),
        attachments={TOKENIZER_NAME: tokenizer.content},
    )


def _left_out(num: int, listed: Sequence[str]) -> str:
    if not num:
        return ""
    more = f", and {num - LISTED:,} more" if num > LISTED else ""
    return visible_name(f"{num:,} skipped: {', '.join(listed[:LISTED])}{more}")
