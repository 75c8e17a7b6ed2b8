"""End of an import by blocks: its shards become a plain store, in place of an older one."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ditlab.data.block_imports.receipt import BlockReceipt, shards_of
from ditlab.data.stores.bucket_manifest import BUCKETS_NAME
from ditlab.data.stores.bucket_writer import PARTIAL
from ditlab.data.stores.manifest import MANIFEST_NAME, Column, Source, TextFacts
from ditlab.data.stores.shards import WrittenShard
from ditlab.data.stores.written import LeftOutRecords, WriteOutcome, WrittenStore
from ditlab.errors import UserError


def refuse_bucketed_store(path: Path) -> None:
    """Raise UserError for a folder that holds a store with buckets."""
    if (path / BUCKETS_NAME).exists():
        raise UserError(f"{path} holds a store with buckets; choose another name, or remove that folder.")


def finish_import(
    path: Path,
    folder: Path,
    receipts: Sequence[BlockReceipt],
    columns: Mapping[str, Column],
    *,
    description: str,
    source: Source,
    left_out: Sequence[LeftOutRecords],
    more: Sequence[WrittenShard] = (),
    text: TextFacts | None = None,
    attachments: Mapping[str, bytes] | None = None,
) -> WrittenStore:
    """Move the shards of an unfinished import's folder, block after block and then `more`, and write their manifest.

    What killed imports of other sources have left below `path` goes as well. Raises UserError where there are no rows,
    and OSError as the disk does.
    """
    from ditlab.data.stores.finishing import finish_store
    from ditlab.data.stores.store import Store

    existed = (path / MANIFEST_NAME).exists()
    try:
        before = Store.open(path).fingerprint
    except UserError:
        before = None
    shards = [*shards_of(receipts), *more]
    move_shards(shards, folder, path)
    finish_store(
        path,
        columns,
        shards,
        name=path.name,
        description=description,
        source=source,
        text=text,
        attachments=attachments,
    )
    for left in path.glob(f"{PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    store = Store.open(path, verify=False)
    outcome: WriteOutcome = "unchanged" if store.fingerprint == before else "replaced" if existed else "written"
    return WrittenStore(store, outcome, tuple(each for each in left_out if each.number))


def move_shards(shards: Sequence[WrittenShard], folder: Path, target: Path) -> None:
    """Move shards from an unfinished import's folder to the store's, where it is finished. Raises OSError."""
    for written in shards:
        (folder / written.shard.file).replace(target / written.shard.file)
