"""Imports by blocks: input in numbered blocks, each made into shards by one pure function, the
manifest written last.

An importer cuts its source into blocks and has rules (`BlockRules`, which can be pickled), which
write a block's shards and return its receipt; it makes a store of the receipts of
`imported_blocks`. A receipt is written last, so that no block is done twice, and whole blocks of a
killed import are taken over; blocks run in processes of this machine or on Ray (`cluster/imports`),
and the result depends on neither.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from ditlab.data.processes import fitting_processes, in_processes
from ditlab.data.source_files import SourceFile
from ditlab.data.stores.manifest import Columns, Source
from ditlab.data.stores.receipt import DroppedRecord, DroppedRecords, ManifestRecord
from ditlab.data.stores.writer import WrittenShard, finish_store
from ditlab.data.stores.writing import PARTIAL, WrittenStore
from ditlab.errors import UserError, disk_remedy
from ditlab.progress import Progress
from ditlab.storage.files import encode_json_line, parse_json_line, write_durably, writing_into

if TYPE_CHECKING:
    from ditlab.data.stores.store import Store


VERSION = 8
"""Version of blocks and receipts: another one begins imports again."""
LEAST_BYTES = 16 * 2**20
MOST_BYTES = 2**30
"""Bounds of a block's input in bytes: about a second of decoding, and as much as is done again
after a kill.
"""
BLOCKS = 256
"""Blocks of an import between these bounds: enough for the cores of a few nodes to end at about the
same time.
"""
MOST_FILES = 16_384
"""Most files of a block."""
RECEIPTS = "receipts"
"""Folder of receipts, below that of an unfinished import."""


@dataclass(frozen=True)
class InputBlock:
    """Part of an import's input, which is read by one task."""

    number: int
    files: tuple[SourceFile, ...]
    """Files that are read, in this order."""
    kind: str = ""
    """Kind of the files, where an importer reads several."""
    start: int = 0
    """First byte, row group, record batch or row of its only file; 0 for whole files."""
    stop: int | None = None
    """End of that range; None: the file's."""
    first_row: int = 0
    """Number of its first row in that file, for people."""
    beside: tuple[SourceFile, ...] = ()
    """Files that belong to those that are read, such as captions."""
    detail: Any = None
    """Values for this block alone, which can be written as JSON."""

    @property
    def prefix(self) -> str:
        """Prefix of the names of its shards: `block-0000012`."""
        return f"block-{self.number:07d}"

    @property
    def receipt(self) -> str:
        """Path of its receipt, below the folder of an unfinished import."""
        return f"{RECEIPTS}/{self.prefix}.json"

    @property
    def bytes(self) -> int:
        """Bytes of its input, as far as its files' sizes say."""
        return sum(file.size for file in self.files)


def block_bytes(total: int) -> int:
    """Return the bytes of a block of a source of `total` bytes, a function of these alone."""
    return min(MOST_BYTES, max(LEAST_BYTES, total // BLOCKS))


def group_files(
    files: Sequence[SourceFile], most_bytes: int | None = None
) -> Iterator[tuple[SourceFile, ...]]:
    """Group whole files in their order to about `most_bytes` (None: `block_bytes`); larger ones
    stay by themselves.
    """
    most_bytes = most_bytes or block_bytes(sum(file.size for file in files))
    group: list[SourceFile] = []
    size = 0
    for file in files:
        if group and (size + file.size > most_bytes or len(group) == MOST_FILES):
            yield tuple(group)
            group = []
            size = 0
        group.append(file)
        size += file.size
    if group:
        yield tuple(group)


class BlockReceipt(ManifestRecord):
    """Result of a block: its shards, its counts, and what was dropped."""

    block: int
    """Number of the block."""
    rows: int
    """Rows of its shards."""
    parts: dict[str, tuple[WrittenShard, ...]]
    """Shards by the folder below the import's that they lie in: an image size; `.`: that folder
    itself.
    """
    left_out: dict[str, int] = Field(default_factory=dict)
    """Number of records that were dropped, by reason."""
    listed: tuple[DroppedRecord, ...] = ()
    """The first of them."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Other sums, of the importer's choice: captions cut, bytes of text."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """Other values, of the importer's choice: tokens that filled no row."""


BlockEnd = Callable[[], BlockReceipt]
"""End of an import's work on a block."""
Receipts = Generator[BlockReceipt, None, None]
"""Receipts of blocks as they are there; closed, it waits for what it has begun."""


def packed(array: np.ndarray) -> str:
    """Return an array's bytes in base64: blocks and receipts travel as JSON."""
    return b64encode(array.tobytes()).decode()


def unpacked(text: str, dtype: npt.DTypeLike) -> np.ndarray:
    """Read an array that `packed` made."""
    return np.frombuffer(b64decode(text), dtype)


def shards_of(receipts: Sequence[BlockReceipt], part: str = ".") -> list[WrittenShard]:
    """Return the shards of a part, block after block."""
    return list(chain.from_iterable(receipt.parts.get(part, ()) for receipt in receipts))


def sums_of(receipts: Sequence[BlockReceipt]) -> Counter[str]:
    """Return the sums of the importer's choice over blocks."""
    return sum((Counter(receipt.counts) for receipt in receipts), Counter[str]())


def dropped_of(receipts: Sequence[BlockReceipt]) -> DroppedRecords:
    """Return what was dropped from blocks."""
    dropped = DroppedRecords()
    for receipt in receipts:
        dropped.counts.update(receipt.left_out)
        dropped.first += receipt.listed
    return dropped


def whole_receipt(folder: Path, block: InputBlock) -> BlockReceipt | None:
    """Return a block's receipt; None where it is not whole, or its shards are not there, by their
    sizes.
    """
    try:
        receipt = BlockReceipt.model_validate(
            parse_json_line((folder / block.receipt).read_bytes())
        )
        if receipt.block == block.number and _has_its_shards(receipt, folder):
            return receipt
    except (OSError, ValidationError):
        pass
    return None


def _has_its_shards(receipt: BlockReceipt, folder: Path) -> bool:
    """Return True where all files of a block's shards have their sizes. Raises OSError for one that
    is missing.
    """
    for part, written in receipt.parts.items():
        for each in written:
            for name, size, _ in each.shard.stored_files:
                if (folder / part / name).stat().st_size != size:
                    return False
    return True


class BlockRules(Protocol):
    """Rules by which an importer makes shards of a block: a frozen dataclass that can be
    pickled.
    """

    def convert(self, block: InputBlock, folder: Path) -> BlockReceipt | BlockEnd:
        """Write a block's shards below a folder, with `block.prefix`. Raises UserError for what the
        options refuse.

        What is left to do may be returned as a function, which ends the block while the next one
        is begun: the last rows, hashes, and the wait for the disk.
        """
        ...


class BlockExecutor(Protocol):
    """Runner of blocks, on one machine or several."""

    def run(self, work: BlockWork, blocks: Sequence[InputBlock]) -> Receipts:
        """Yield the receipt of each block once, in any order, as it is there. Raises whatever
        `work` raises.
        """
        ...


@dataclass(frozen=True)
class BlockWork:
    """Work of a block, which can be pickled: its shards, and then its receipt. A pure function of
    block and rules.
    """

    rules: BlockRules
    folder: Path
    """Folder of the unfinished import."""

    @property
    def uses_gpu(self) -> bool:
        """True for rules that say so: their work is faster on a GPU."""
        return bool(getattr(self.rules, "uses_gpu", False))

    def __call__(self, block: InputBlock) -> BlockReceipt:
        """Make a block's shards, then its receipt, unless they are whole; done twice, it gives the
        same files.

        Raises UserError as the rules do, and for a folder not to be written.
        """
        return self.begin(block)()

    def begin(self, block: InputBlock) -> BlockEnd:
        """Do a block but for its end, which another thread may do. Raises as `__call__` does, and
        so does the end.
        """
        converted: BlockReceipt | BlockEnd | None = whole_receipt(self.folder, block)
        if converted is None:
            with self._writing():
                (self.folder / RECEIPTS).mkdir(parents=True, exist_ok=True)
                converted = self.rules.convert(block, self.folder)
        return partial(self._end, block, converted)

    def _end(self, block: InputBlock, converted: BlockReceipt | BlockEnd) -> BlockReceipt:
        with self._writing():
            receipt = converted() if callable(converted) else converted
            write_durably(
                self.folder / block.receipt, encode_json_line(receipt.model_dump(mode="json"))
            )
        return receipt

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise UserError in place of OSError."""
        try:
            yield
        except OSError as error:
            remedy = "choose another folder with --out"
            raise UserError(
                f"{self.folder.parent} cannot be written ({error.strerror}); "
                f"{disk_remedy(error, remedy)}, and give the same command again: it goes on from "
                "its whole blocks."
            ) from error


@dataclass(frozen=True)
class ProcessExecutor:
    """Execution in processes of this machine; one block at a time in this process, where one is
    enough.
    """

    processes: int | None = None
    """None: as many as the cores and the input allow."""
    verb: str = "decodes"
    """Work of a process in messages: `decodes`."""

    def run(self, work: BlockWork, blocks: Sequence[InputBlock]) -> Receipts:
        """Yield the receipts of blocks in their order. Raises as `processes.in_processes` does."""
        processes = min(
            self.processes or fitting_processes(sum(block.bytes for block in blocks)), len(blocks)
        )
        if processes <= 1:
            yield from overlapping(work, blocks)
        else:
            yield from in_processes(work, blocks, processes, self.verb)


def overlapping(work: BlockWork, blocks: Sequence[InputBlock]) -> Receipts:
    """Yield the receipts of blocks in their order; a thread ends each while the next one is begun.
    Raises as `work` does.
    """
    ending: Future[BlockReceipt] | None = None
    with ThreadPoolExecutor(1) as pool:
        for block in blocks:
            before = ending
            ending = pool.submit(work.begin(block))
            if before is not None:
                yield before.result()
        if ending is not None:
            yield ending.result()


@dataclass(frozen=True)
class BeginningExecutor:
    """Execution in this process, of the first blocks alone: until they have given `limit` records,
    used or dropped.
    """

    limit: int

    def run(self, work: BlockWork, blocks: Sequence[InputBlock]) -> Receipts:
        """Yield the receipts of the first blocks in their order."""
        found = 0
        for block in blocks:
            receipt = work(block)
            yield receipt
            found += receipt.rows + sum(receipt.left_out.values())
            if found >= self.limit:
                return


class RefusedSource(UserError):
    """A source that an importer's options refuse: an import of another source, or with other
    options, begins at the first block.
    """


@contextmanager
def imported_blocks(
    path: Path,
    kind: str,
    blocks: Sequence[InputBlock],
    options: Mapping[str, Any],
    rules: BlockRules,
    executor: BlockExecutor,
    progress: Progress,
    what: str = "importing",
) -> Iterator[tuple[Path, list[BlockReceipt]]]:
    """Make the shards of all blocks in a folder below a store's; gives that folder and the receipts
    in order.

    `options`: all that changes the result beside the blocks, as values of JSON. Blocks whose
    receipt is whole are taken over from an import of the same fingerprint that was killed. The
    folder goes once the body ends, or the source is refused; else what is done stays. Raises as the
    executor does.
    """
    folder = path / f"{PARTIAL}{_plan_digest(kind, blocks, options)[:32]}"
    made = [path, *(above for above in path.parents if not above.exists())]
    done: dict[int, BlockReceipt] = {}
    for block in blocks:
        receipt = whole_receipt(folder, block)
        if receipt is not None:
            done[block.number] = receipt
    missing = [block for block in blocks if block.number not in done]
    is_over = False
    try:
        progress(what, len(done), len(blocks), "blocks")
        if missing:
            with closing(executor.run(BlockWork(rules, folder), missing)) as receipts:
                for receipt in receipts:
                    done[receipt.block] = receipt
                    progress(what, len(done), len(blocks), "blocks")
        yield folder, [receipt for _, receipt in sorted(done.items())]
        is_over = True
    except RefusedSource:
        is_over = True
        raise
    finally:
        if is_over or not any((folder / RECEIPTS).glob("*.json")):
            shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(made)


def _plan_digest(kind: str, blocks: Sequence[InputBlock], options: Mapping[str, Any]) -> str:
    """Return a hash of all that decides the result of an import."""
    digest = hashlib.sha256(
        json.dumps([kind, VERSION, dict(options)], sort_keys=True, default=str).encode()
    )
    for block in blocks:
        described = [
            block.number,
            block.kind,
            block.start,
            block.stop,
            block.first_row,
            block.detail,
        ]
        for files in (block.files, block.beside):
            described.append([(file.root, file.name, file.size, file.stamp) for file in files])
        digest.update(json.dumps(described, default=str).encode())
    return digest.hexdigest()


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.exists() and not any(folder.iterdir()):
            folder.rmdir()


def finish_import(
    path: Path,
    folder: Path,
    receipts: Sequence[BlockReceipt],
    columns: Columns,
    *,
    more: Sequence[WrittenShard] = (),
    **facts: Any,
) -> WrittenStore:
    """Make a store of an unfinished import's shards, block after block and then `more`; `facts` as
    of `finish_store`.

    What killed imports of other sources have left below `path` goes as well. Raises UserError where
    there are no rows, and for a folder that cannot be written.
    """
    store = _place_store(
        [*shards_of(receipts), *more], folder, path, columns, name=path.name, **facts
    )
    for left in path.glob(f"{PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)
    return WrittenStore(store)


def finish_parts(
    folder: Path,
    receipts: Sequence[BlockReceipt],
    columns: Mapping[str, Columns],
    source: Source,
    attachments: Mapping[str, Mapping[str, bytes]],
) -> dict[str, Store]:
    """Make stores of the shards, columns and attachments by part (a folder below the import's), to
    be moved to their places.
    """
    stores: dict[str, Store] = {}
    for part, those in columns.items():
        place = folder / "finished" / part
        shutil.rmtree(place, ignore_errors=True)
        shards = shards_of(receipts, part)
        stores[part] = _place_store(
            shards,
            folder / part,
            place,
            those,
            name=part,
            description="",
            source=source,
            attachments=attachments.get(part),
        )
    return stores


def _place_store(
    shards: Sequence[WrittenShard], folder: Path, place: Path, columns: Columns, **facts: Any
) -> Store:
    """Make a store at a place of an import's shards, so that both have them; a file system without
    links moves them.
    """
    from ditlab.data.stores.store import Store

    with writing_into(place):
        place.mkdir(parents=True, exist_ok=True)
        for written in shards:
            for name, _, _ in written.shard.stored_files:
                target = place / name
                target.unlink(missing_ok=True)
                try:
                    target.hardlink_to(folder / name)
                except OSError:
                    (folder / name).replace(target)
        finish_store(place, columns, shards, **facts)
    return Store.open(place, verify=False)
