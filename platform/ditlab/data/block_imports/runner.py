"""Running an import: its whole blocks are taken over, the others done, and their receipts put in order."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ditlab.data.block_imports.execution import BlockExecutor, BlockRules, BlockWork
from ditlab.data.block_imports.plan import ImportPlan
from ditlab.data.block_imports.receipt import RECEIPTS, BlockReceipt, read_receipt
from ditlab.errors import UserError
from ditlab.progress import Progress


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

    Blocks whose receipt is whole, and whose shards are there, are taken over. Progress counts records, and bytes of the
    input where the number of records is not known. Raises as the executor does; what is done stays in the folder.
    """
    found = {block.number: receipt for block in plan.blocks if (receipt := read_receipt(folder, block)) is not None}
    sizes = _shard_sizes(folder) if found else {}
    done = {number: receipt for number, receipt in found.items() if _is_whole(receipt, sizes)}
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

    def add(self, *receipts: BlockReceipt) -> None:
        """Report that some blocks are done."""
        self._records += sum(receipt.records for receipt in receipts)
        self._bytes += sum(self._plan.blocks[receipt.block].bytes for receipt in receipts)
        if self._plan.records is None:
            self._progress(f"{self._what}: input", self._bytes, sum(block.bytes for block in self._plan.blocks))
        self._progress(self._what, self._records, self._plan.records, self._unit)


def _shard_sizes(folder: Path) -> dict[tuple[str, str], int]:
    """Return the bytes of all shards by part and name: of an unfinished import, and of what it moved to its place."""
    sizes: dict[tuple[str, str], int] = {}
    moved = {each.name: each.name.rpartition("-")[0] for each in _entries(folder.parent) if each.is_dir()}
    folders = {folder.parent / name: part for name, part in moved.items() if part and not name.startswith(".")}
    folders |= {folder.parent: ".", folder: "."}
    folders |= {folder / each.name: each.name for each in _entries(folder) if each.is_dir() and each.name != RECEIPTS}
    for path, part in folders.items():
        for entry in _entries(path):
            if entry.name.endswith(".arrow") and entry.is_file(follow_symlinks=False):
                sizes[part, entry.name] = entry.stat().st_size
    return sizes


def _entries(path: Path) -> "list[os.DirEntry[str]]":
    try:
        return list(os.scandir(path))
    except OSError:
        return []


def _is_whole(receipt: BlockReceipt, sizes: dict[tuple[str, str], int]) -> bool:
    shards = ((part, each.shard) for part, written in receipt.parts.items() for each in written)
    return all(sizes.get((part, shard.file)) == shard.bytes for part, shard in shards)


@contextmanager
def unfinished_import(folder: Path) -> Iterator[None]:
    """Remove the folder of an import once the body ends, and where its source is refused; else what is done stays.

    An empty folder above it is removed as well.
    """
    try:
        yield
    except RefusedSource:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if not _holds_receipts(folder):
            shutil.rmtree(folder, ignore_errors=True)
        if folder.parent.exists() and not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _holds_receipts(folder: Path) -> bool:
    return bool(_entries(folder / RECEIPTS))


def move_shards(receipts: list[BlockReceipt], folder: Path, target: Path) -> None:
    """Move the shards of a plain store from an unfinished import's folder to the store's.

    Those that an import moved before it was killed are there. Raises OSError as the disk does.
    """
    for receipt in receipts:
        for written in receipt.parts.get(".", ()):
            if (folder / written.shard.file).exists():
                (folder / written.shard.file).replace(target / written.shard.file)
