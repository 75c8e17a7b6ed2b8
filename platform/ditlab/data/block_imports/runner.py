"""Running an import: its whole blocks are taken over, the others done, and their shards become a plain store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ditlab.data.block_imports.plan import (
    RECEIPTS,
    BlockReceipt,
    ImportPlan,
    InputBlock,
    shards_of,
    whole_receipt,
    write_receipt,
)
from ditlab.data.processes import fitting_processes, in_processes
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, Column, Source, TextFacts
from ditlab.data.stores.writer import WrittenShard, finish_store
from ditlab.data.stores.writing import PARTIAL, LeftOutRecords, WriteOutcome, WrittenStore
from ditlab.errors import UserError
from ditlab.progress import Progress
from ditlab.storage.files import writing_into

if TYPE_CHECKING:
    from ditlab.data.stores.store import Store


class BlockRules(Protocol):
    """Rules by which an importer makes shards of a block: a frozen dataclass that can be pickled."""

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt:
        """Read a block and write its shards below a folder, with `block.prefix`; nothing else may depend on them.

        Raises UserError for what the importer's options refuse.
        """
        ...


class BlockExecutor(Protocol):
    """Runner of blocks, on one machine or several."""

    def run(self, work: Callable[[InputBlock], BlockReceipt], blocks: Sequence[InputBlock]) -> Iterator[BlockReceipt]:
        """Yield the receipt of each block once, in any order, as it is there. Raises whatever `work` raises."""
        ...


@dataclass(frozen=True)
class BlockWork:
    """Work of a block, which can be pickled: its shards, and then its receipt. A pure function of block and rules."""

    rules: BlockRules
    folder: Path
    """Folder of the unfinished import."""

    @property
    def uses_gpu(self) -> bool:
        """True for rules that say so: their work is faster on a GPU."""
        return bool(getattr(self.rules, "uses_gpu", False))

    def __call__(self, block: InputBlock) -> BlockReceipt:
        """Make a block's shards, then its receipt.

        Done twice, also at once, it gives the same files; what is whole is not done again. Raises UserError as the
        rules do, for a file that was changed since it was listed, and for a folder that cannot be written.
        """
        try:
            receipt = whole_receipt(self.folder, block)
            if receipt is not None:
                return receipt
            self.folder.mkdir(parents=True, exist_ok=True)
            receipt = self.rules.convert(block, self.folder)
            for file in (*block.files, *block.beside):  # the plan's fingerprint would not tell a changed one
                if file.was_changed():
                    raise UserError(
                        f"{file.place} was changed during the import; give the command again once the source stays as "
                        "it is."
                    )
            write_receipt(self.folder, receipt)
        except OSError as error:
            raise UserError(
                f"{self.folder.parent} cannot be written ({error.strerror}); free space there or choose another folder "
                "with --out, and give the same command again: it goes on from its whole blocks."
            ) from error
        return receipt


@dataclass(frozen=True)
class ProcessExecutor:
    """Execution in processes of this machine; one block at a time in this process, where one is enough."""

    processes: int | None = None
    """None: as many as the cores and the input allow."""
    verb: str = "decodes"
    """Work of a process in messages: `decodes`."""

    def run(self, work: Callable[[InputBlock], BlockReceipt], blocks: Sequence[InputBlock]) -> Iterator[BlockReceipt]:
        """Yield the receipts of blocks in their order. Raises as `processes.in_processes` does."""
        processes = min(self.processes or fitting_processes(sum(block.bytes for block in blocks)), len(blocks))
        yield from map(work, blocks) if processes <= 1 else in_processes(work, blocks, processes, self.verb)


class RefusedSource(UserError):
    """A source that an importer's options refuse: another source or another option begins anew."""


def run_blocks(
    plan: ImportPlan,
    rules: BlockRules,
    folder: Path,
    executor: BlockExecutor,
    progress: Progress,
    what: str = "importing",
    unit: str = "records",
) -> list[BlockReceipt]:
    """Make the shards of all blocks below the folder of an unfinished import; returns the receipts in order.

    Blocks whose receipt is whole, and whose shards are there, are taken over. Progress counts records; their number is
    estimated from the input's bytes where the plan does not know it. Raises as the executor does; what is done stays in
    the folder.
    """
    done = {block.number: receipt for block in plan.blocks if (receipt := whole_receipt(folder, block)) is not None}
    missing = [block for block in plan.blocks if block.number not in done]
    total_bytes = sum(block.bytes for block in plan.blocks)
    records = sum(receipt.records for receipt in done.values())
    read = total_bytes - sum(block.bytes for block in missing)

    def report() -> None:
        if plan.records is not None:
            progress(what, records, plan.records, unit)
            return
        total = records if read >= total_bytes else int(float(f"{records * total_bytes / max(1, read):.1e}"))
        progress(what, records, max(records, total) or None, f"{unit} (estimated)")

    report()
    for receipt in executor.run(BlockWork(rules, folder), missing) if missing else ():
        done[receipt.block] = receipt
        records += receipt.records
        read += plan.blocks[receipt.block].bytes
        report()
    return [done[block.number] for block in plan.blocks]


@contextmanager
def unfinished_import(folder: Path) -> Iterator[None]:
    """Remove the folder of an import once the body ends, and where its source is refused; else what is done stays.

    Folders above it that are made in the body, and the store's, are removed where they are empty.
    """
    made = [folder.parent, *(above for above in folder.parent.parents if not above.exists())]
    try:
        yield
    except RefusedSource:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if not any((folder / RECEIPTS).glob("*.json")):
            shutil.rmtree(folder, ignore_errors=True)
        for above in made:
            if above.exists() and not any(above.iterdir()):
                above.rmdir()


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
    left_out: Sequence[LeftOutRecords] = (),
    more: Sequence[WrittenShard] = (),
    text: TextFacts | None = None,
    attachments: Mapping[str, bytes] | None = None,
) -> WrittenStore:
    """Make a store of an unfinished import's shards, block after block and then `more`.

    What killed imports of other sources have left below `path` goes as well. Raises UserError where there are no rows,
    and for a folder that cannot be written.
    """
    from ditlab.data.stores.store import Store

    existed = (path / MANIFEST_NAME).exists()
    try:
        before = Store.open(path).fingerprint
    except UserError:
        before = None
    shards = [*shards_of(receipts), *more]
    with writing_into(path):
        place_shards(shards, folder, path)
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


def finish_parts(
    folder: Path, receipts: Sequence[BlockReceipt], columns: Mapping[str, Mapping[str, Column]], source: Source
) -> dict[str, Store]:
    """Make stores of the shards that lie in folders below an unfinished import's, to be moved to their places.

    `columns` and stores: by the name of that folder. Raises UserError for a folder that cannot be written.
    """
    from ditlab.data.stores.store import Store

    stores: dict[str, Store] = {}
    for part, those in columns.items():
        place, shards = folder / "finished" / part, shards_of(receipts, part)
        with writing_into(folder):
            shutil.rmtree(place, ignore_errors=True)
            place_shards(shards, folder / part, place)
            finish_store(place, those, shards, name=part, description="", source=source)
        stores[part] = Store.open(place, verify=False)
    return stores


def place_shards(shards: Sequence[WrittenShard], folder: Path, target: Path) -> None:
    """Give shards of an unfinished import a name in a store's folder, so that both have them. Raises OSError.

    A file system without links moves them: a kill before the manifest is written then costs their blocks.
    """
    target.mkdir(parents=True, exist_ok=True)
    for written in shards:
        shard, place = folder / written.shard.file, target / written.shard.file
        place.unlink(missing_ok=True)
        try:
            place.hardlink_to(shard)
        except OSError:
            shard.replace(place)
