"""Receipt of a block: a file that says what was made of it, written last, so that no block is done twice."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ditlab.data.block_imports.plan import InputBlock
from ditlab.data.stores.manifest import ManifestRecord
from ditlab.data.stores.shards import WrittenShard
from ditlab.storage.files import encode_json_line, parse_json_line, write_durably
from ditlab.storage.plain_files import MIB, read_plain

RECEIPTS = "receipts"
"""Folder of receipts, below that of an unfinished import."""
MOST_LISTED = 1000
"""Records of a block that are listed where they are left out; all are counted."""
_RECEIPT_BYTES = 64 * MIB


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


def count_left_out(records: Iterable[LeftOut]) -> dict[str, int]:
    """Count records by reason."""
    return dict(sorted(Counter(record.reason for record in records).items()))


def total_counts(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add up counts by name."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def shards_of(receipts: Sequence[BlockReceipt], part: str = ".") -> list[WrittenShard]:
    """Return the shards of a part, block after block."""
    return [shard for receipt in receipts for shard in receipt.parts.get(part, ())]


def receipt_path(folder: Path, block: InputBlock) -> Path:
    """Return the path of a block's receipt."""
    return folder / RECEIPTS / f"{block.number:07d}.json"


def write_receipt(folder: Path, block: InputBlock, receipt: BlockReceipt) -> None:
    """Write a receipt durably, in place of an older one. Raises OSError as the disk does."""
    path = receipt_path(folder, block)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, encode_json_line(receipt.model_dump(mode="json")))


def read_receipt(folder: Path, block: InputBlock) -> BlockReceipt | None:
    """Read a block's receipt; None where there is none that is whole."""
    try:
        record = parse_json_line(read_plain(receipt_path(folder, block), _RECEIPT_BYTES))
        receipt = None if record is None else BlockReceipt.model_validate(record)
    except (OSError, ValidationError):
        return None
    return receipt if receipt is not None and receipt.block == block.number else None


def whole_receipt(folder: Path, block: InputBlock) -> BlockReceipt | None:
    """Return a block's receipt; None where it is not whole, or its shards are not there, by their sizes."""
    receipt = read_receipt(folder, block)
    shards = ((part, each.shard) for part, written in (receipt.parts if receipt else {}).items() for each in written)
    return receipt if all(_size(folder / part / shard.file) == shard.bytes for part, shard in shards) else None


def _size(path: Path) -> int | None:
    try:
        return path.stat(follow_symlinks=False).st_size
    except OSError:
        return None
