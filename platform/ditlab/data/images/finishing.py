"""End of an import of images: shards by size become stores, which encoders' features may be added to."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    from ditlab.data.stores.store import Store


def finish_parts(
    folder: Path, receipts: Sequence[BlockReceipt], parts: Mapping[str, Mapping[str, Column]], source: Source
) -> "dict[str, Store]":
    """Make stores of the shards below an unfinished import's folder, by the folder's name; returns them, open.

    Raises OSError as the disk does.
    """
    from ditlab.data.stores.finishing import finish_store
    from ditlab.data.stores.store import Store

    stores: dict[str, Store] = {}
    for part, columns in parts.items():
        finish_store(folder / part, columns, shards_of(receipts, part), name=part, description="", source=source)
        stores[part] = Store.open(folder / part, verify=False)
    return stores


@contextmanager
def encoded_parts(
    path: Path,
    parts: "Mapping[str, Store]",
    encoders: EncoderChoice,
    tokens: int | None,
    source: Source,
    request: ImportRequest[Any],
) -> "Iterator[dict[str, Store]]":
    """Make stores with the encoders' columns below `path`; yields them, to be moved before the body ends.

    `tokens`: those of every row's `text`; None: those of the longest caption. A killed one goes on from its whole
    blocks. Raises UserError for encoders that cannot be used, and for features that are not finite.
    """
    features = open_features(encoders)
    if encoders.text:
        request.progress("reading captions", 0, None, "")
    found = measure_captions(parts.values(), features) if encoders.text and tokens is None else tokens or 0
    plan = encoding_plan(parts, encoders, found)
    rules = EncodingRules(encoders, found)
    folder = partial_folder(path, plan)
    with unfinished_import(folder):
        executor = request.executor or ProcessExecutor(1, "encodes")
        receipts = run_blocks(plan, rules, folder, executor, request.progress, "encoding", "rows")
        columns = {part: encoded_columns(store, rules.features()) for part, store in parts.items()}
        yield finish_parts(folder, receipts, columns, source)
