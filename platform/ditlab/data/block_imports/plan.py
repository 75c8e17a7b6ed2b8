"""Plan of an import: its input as numbered, fixed blocks, and the receipt of each.

The plan is a function of the source and the options alone. A receipt says what was made of a block; it is written last,
so that no block is done twice.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from ditlab.data.block_imports.source_files import SourceFile
from ditlab.data.stores.manifest import ManifestRecord
from ditlab.data.stores.writer import WrittenShard
from ditlab.data.stores.writing import PARTIAL
from ditlab.storage.files import encode_json_line, parse_json_line, write_durably
from ditlab.storage.plain_files import MIB, read_plain

VERSION = 3
"""Version of the plans: another one begins imports again."""
LEAST_BYTES, MOST_BYTES = 16 * 2**20, 2**30
"""Bounds of a block's input in bytes: about a second of decoding, and as much as is done again after a kill."""
BLOCKS = 256
"""Blocks of an import between these bounds: enough for the cores of a few nodes to end at about the same time."""
MOST_FILES = 16_384
"""Most files of a block."""
RECEIPTS = "receipts"
"""Folder of receipts, below that of an unfinished import."""
MOST_LISTED = 1000
"""Records of a block that are listed where they are left out; all are counted."""


@dataclass(frozen=True)
class InputBlock:
    """Part of an import's input, which is read by one task."""

    number: int
    files: tuple[SourceFile, ...]
    """Files that are read, in this order."""
    kind: str = ""
    """Kind of the files, where an importer reads several."""
    start: int = 0
    """First byte, row group or row of its only file; 0 for whole files."""
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
    def bytes(self) -> int:
        """Bytes of its input, as far as its files' sizes say."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class ImportPlan:
    """Blocks of an import, and the fingerprint of all that its result depends on."""

    blocks: Sequence[InputBlock]
    fingerprint: str
    """SHA-256 (hex) of the source's listing (names, sizes, times of change), the blocks' cuts and the options."""
    records: int | None = None
    """Records of all blocks, for the time left; None where they are not known beforehand."""

    @classmethod
    def of(
        cls, kind: str, blocks: Sequence[InputBlock], options: Mapping[str, Any], records: int | None = None
    ) -> ImportPlan:
        """Make a plan. `options`: all that changes the result, as values of JSON; neither name nor processes."""
        digest = hashlib.sha256(json.dumps([kind, VERSION, dict(options)], sort_keys=True, default=str).encode())
        for block in blocks:
            described = [block.number, block.kind, block.start, block.stop, block.first_row, block.detail]
            for files in (block.files, block.beside):
                described.append([(file.root, file.name, file.size, file.stamp) for file in files])
            digest.update(json.dumps(described, default=str).encode())
        return cls(tuple(blocks), digest.hexdigest(), records)

    def folder(self, store: Path) -> Path:
        """Return the folder of the unfinished import below its store's."""
        return store / f"{PARTIAL}{self.fingerprint[:32]}"


def block_bytes(total: int) -> int:
    """Return the bytes of a block of a source of `total` bytes, a function of these alone."""
    return min(MOST_BYTES, max(LEAST_BYTES, total // BLOCKS))


def group_files(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, ...]]:
    """Group whole files in their order to blocks of about `block_bytes`; a larger file is a group of its own."""
    most_bytes = block_bytes(sum(file.size for file in files))
    group: list[SourceFile] = []
    size = 0
    for file in files:
        if group and (size + file.size > most_bytes or len(group) == MOST_FILES):
            yield tuple(group)
            group, size = [], 0
        group.append(file)
        size += file.size
    if group:
        yield tuple(group)


class LeftOut(ManifestRecord):
    """Record of a source that was left out of a store."""

    place: str
    """Place for people: a path below the source, a tar's member, a row of a file."""
    reason: str
    """Kind of reason, which records are counted by: `too small`."""
    detail: str
    """Finding that led to it."""


class BlockReceipt(ManifestRecord):
    """Result of a block: its shards, its counts, and what was left out."""

    block: int
    """Number of the block."""
    rows: int
    """Rows of its shards."""
    parts: dict[str, tuple[WrittenShard, ...]]
    """Shards by the folder below the import's that they lie in: an image size; `.`: that folder itself."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Number of records that were left out, by reason."""
    listed: tuple[LeftOut, ...] = ()
    """The first of them."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Other sums, of the importer's choice: captions cut, bytes of text."""
    detail: dict[str, Any] = Field(default_factory=dict)
    """Other values, of the importer's choice: tokens that filled no row."""

    @property
    def records(self) -> int:
        """Records of the source: those that became rows, and those that were left out."""
        return self.rows + sum(self.left_out.values())


def packed(array: np.ndarray) -> str:
    """Return an array's bytes in base64: blocks and receipts travel as JSON."""
    return b64encode(array.tobytes()).decode()


def unpacked(text: str, dtype: npt.DTypeLike) -> np.ndarray:
    """Read an array that `packed` made."""
    return np.frombuffer(b64decode(text), dtype)


def total_counts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by name."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def shards_of(receipts: Sequence[BlockReceipt], part: str = ".") -> list[WrittenShard]:
    """Return the shards of a part, block after block."""
    return [shard for receipt in receipts for shard in receipt.parts.get(part, ())]


def write_receipt(folder: Path, receipt: BlockReceipt) -> None:
    """Write a receipt durably, in place of an older one. Raises OSError as the disk does."""
    path = _receipt_path(folder, receipt.block)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, encode_json_line(receipt.model_dump(mode="json")))


def whole_receipt(folder: Path, block: InputBlock) -> BlockReceipt | None:
    """Return a block's receipt; None where it is not whole, or its shards are not there, by their sizes."""
    try:
        content = read_plain(_receipt_path(folder, block.number), 64 * MIB)
        receipt = BlockReceipt.model_validate(parse_json_line(content))
        shards = ((part, each.shard) for part, written in receipt.parts.items() for each in written)
        sizes_fit = all((folder / part / shard.file).stat().st_size == shard.bytes for part, shard in shards)
    except (OSError, ValidationError):
        return None
    return receipt if sizes_fit and receipt.block == block.number else None


def _receipt_path(folder: Path, number: int) -> Path:
    return folder / RECEIPTS / f"{number:07d}.json"
