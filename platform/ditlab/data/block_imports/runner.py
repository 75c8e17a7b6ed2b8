"""Running an import: its whole blocks are taken over, the others done, and their shards become a plain store.

The receipts are put in order. The store takes the place of an older one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ditlab.data.block_imports.plan import (
    RECEIPTS,
    BlockReceipt,
    ImportPlan,
    InputBlock,
    read_receipt,
    shards_of,
    whole_receipt,
    write_receipt,
)
from ditlab.data.processes import fitting_processes, in_processes
from ditlab.data.stores.manifest import BUCKETS_NAME, MANIFEST_NAME, Column, Source, TextFacts
from ditlab.data.stores.shards import WrittenShard
from ditlab.data.stores.writing import PARTIAL, LeftOutRecords, WriteOutcome, WrittenStore
from ditlab.errors import UserError
from ditlab.progress import Progress


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
                if file.stamp.isdigit() and not file.is_remote and file.stamp != file.current_stamp():
                    raise UserError(
                        f"{file.place} was changed during the import; give the command again once the source stays as "
                        "it is."
                    )
            write_receipt(self.folder, block, receipt)
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
    whole = {block.number: receipt for block in plan.blocks if (receipt := read_receipt(folder, block)) is not None}
    files = dict(_shard_files(folder)) if whole else {}
    done = {number: receipt for number, receipt in whole.items() if _is_whole(receipt, files, folder)}
    missing = [block for block in plan.blocks if block.number not in done]
    counter = _Counter(plan, progress, what, unit)
    counter.add(*done.values())
    for receipt in executor.run(BlockWork(rules, folder), missing) if missing else ():
        done[receipt.block] = receipt
        counter.add(receipt)
    return [done[block.number] for block in plan.blocks]


class _Counter:
    def __init__(self, plan: ImportPlan, progress: Progress, what: str, unit: str) -> None:
        self._plan, self._progress, self._what, self._unit = plan, progress, what, unit
        self._records = self._bytes = 0
        self._total_bytes = sum(block.bytes for block in plan.blocks)

    def add(self, *receipts: BlockReceipt) -> None:
        """Report that some blocks are done."""
        self._records += sum(receipt.records for receipt in receipts)
        self._bytes += sum(self._plan.blocks[receipt.block].bytes for receipt in receipts)
        if self._plan.records is not None:
            self._progress(self._what, self._records, self._plan.records, self._unit)
        else:
            self._progress(self._what, self._records, self._estimate(), f"{self._unit} (estimated)")

    def _estimate(self) -> int | None:
        """Return the number of records, to two digits, by those of the input so far."""
        if not self._records or self._bytes >= self._total_bytes:
            return self._records or None
        number = self._records * self._total_bytes / self._bytes
        return max(self._records, int(float(f"{number:.1e}")))


def _shard_files(folder: Path) -> Iterator[tuple[tuple[str, str], Path]]:
    """Iterate over shards by part and name: those that an import moved to their place, then those that it did not."""
    for path in _folders(folder.parent):
        part = path.name.rpartition("-")[0]
        if part and not path.name.startswith("."):
            yield from (((part, shard.name), shard) for shard in path.glob("*.arrow"))
    yield from (((".", shard.name), shard) for shard in folder.parent.glob("*.arrow"))
    yield from (((".", shard.name), shard) for shard in folder.glob("*.arrow"))
    for path in _folders(folder):
        yield from (((path.name, shard.name), shard) for shard in path.glob("*.arrow"))


def _folders(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if each.is_dir()] if path.is_dir() else []


def _is_whole(receipt: BlockReceipt, files: dict[tuple[str, str], Path], folder: Path) -> bool:
    """Return True if all shards of a receipt are there; those that were moved get a second name in the folder."""
    shards = [(part, each.shard) for part, written in receipt.parts.items() for each in written]
    paths = [(files.get((part, shard.file)), folder / part / shard.file) for part, shard in shards]
    for (_, shard), (path, _) in zip(shards, paths, strict=True):
        if path is None or not path.is_file() or path.stat().st_size != shard.bytes:
            return False
    for path, place in paths:
        if path is not None and path != place:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except OSError:  # a file system without links
                shutil.copyfile(path, place)
    return True


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
    left_out: Sequence[LeftOutRecords],
    more: Sequence[WrittenShard] = (),
    text: TextFacts | None = None,
    attachments: Mapping[str, bytes] | None = None,
) -> WrittenStore:
    """Move the shards of an unfinished import's folder, block after block and then `more`, and write their manifest.

    What killed imports of other sources have left below `path` goes as well. Raises UserError where there are no rows,
    and OSError as the disk does.
    """
    from ditlab.data.stores.store import Store
    from ditlab.data.stores.writer import finish_store

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
