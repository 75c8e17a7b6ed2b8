"""End of an import of images: shards by size become stores, which encoders' features may be added to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ditlab.data.block_imports.execution import ProcessExecutor
from ditlab.data.block_imports.plan import partial_folder
from ditlab.data.block_imports.receipt import BlockReceipt, shards_of
from ditlab.data.block_imports.runner import run_blocks, unfinished_import
from ditlab.data.images.encoding import (
    EncoderChoice,
    EncodingRules,
    encoded_columns,
    encoding_plan,
    measure_captions,
    open_features,
)
from ditlab.data.import_request import ImportRequest
from ditlab.data.stores.manifest import Column, Source

if TYPE_CHECKING:  # torch, which an importer's --help can do without
    from ditlab.data.stores.shards import WrittenShard
    from ditlab.data.stores.store import Store


@dataclass(frozen=True)
class EncodedParts:
    """Shards with encoders' columns, in the folder of an unfinished import."""

    folder: Path
    receipts: Sequence[BlockReceipt]
    columns: Mapping[str, Mapping[str, Column]]
    """Columns by the folder that the shards lie in, below the other one."""

    def shards(self, part: str) -> "list[WrittenShard]":
        """Return a part's shards, block after block."""
        return shards_of(self.receipts, part)


def finish_parts(parts: EncodedParts, source: Source) -> "dict[str, Store]":
    """Make stores of the shards below an unfinished import's folder; returns them, open. Raises OSError as the disk."""
    from ditlab.data.stores.finishing import finish_store
    from ditlab.data.stores.store import Store

    stores: dict[str, Store] = {}
    for part, columns in parts.columns.items():
        folder = parts.folder / part
        for left in folder.glob(".*.partial"):  # by workers that were killed
            left.unlink(missing_ok=True)
        finish_store(folder, columns, parts.shards(part), name=part, description="", source=source)
        stores[part] = Store.open(folder, verify=False)
    return stores


@contextmanager
def encoded_parts(
    path: Path,
    parts: "Mapping[str, Store]",
    encoders: EncoderChoice,
    tokens: int | None,
    request: ImportRequest[Any],
) -> "Iterator[EncodedParts]":
    """Make shards with the encoders' columns below `path`; they are to be moved before the body ends.

    `tokens`: those of every row's `text`; None: those of the longest caption. A killed one goes on from its whole
    blocks. Raises UserError for encoders that cannot be used, and for features that are not finite.
    """
    features = open_features(encoders)
    if encoders.text and tokens is None:
        request.progress("reading captions", 0, None, "")
        tokens = measure_captions(parts.values(), features)
    plan = encoding_plan(parts, encoders, tokens or 0)
    rules = EncodingRules(encoders, tokens or 0)
    folder = partial_folder(path, plan)
    with unfinished_import(folder):
        executor = request.executor or ProcessExecutor(1, "encodes")
        receipts = run_blocks(plan, rules, folder, executor, request.progress, "encoding", "rows")
        yield EncodedParts(
            folder, receipts, {part: encoded_columns(store, rules.features()) for part, store in parts.items()}
        )
