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

    Blocks whose receipt is whole, and whose shards are there, are taken over. Progress counts records; their number is
    estimated from the input's bytes where the plan does not know it. Raises as the executor does; what is done stays in
    the folder.
    """
    done = _taken_over(plan, folder)
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


def _taken_over(plan: ImportPlan, folder: Path) -> dict[int, BlockReceipt]:
    """Return the receipts of blocks that are done: the receipt is whole, and so are the shards, by their sizes."""
    found = {block.number: receipt for block in plan.blocks if (receipt := read_receipt(folder, block)) is not None}
    files = dict(_shard_files(folder)) if found else {}
    return {number: receipt for number, receipt in found.items() if _is_whole(receipt, files, folder)}


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
            _link(path, place)
    return True


def _link(path: Path, place: Path) -> None:
    try:
        os.link(path, place)
    except OSError:  # a file system without links
        shutil.copyfile(path, place)


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
        if not _holds_receipts(folder):
            shutil.rmtree(folder, ignore_errors=True)
        for above in made:
            if above.exists() and not any(above.iterdir()):
                above.rmdir()


def _holds_receipts(folder: Path) -> bool:
    return (folder / RECEIPTS).is_dir() and any((folder / RECEIPTS).glob("*.json"))
