"""Checks of a parsed manifest: numbers that contradict each other, or that no store has."""

from collections.abc import Mapping

from ditlab.data.stores.blocks.index import entry_bytes
from ditlab.data.stores.bucket_manifest import BucketsManifest
from ditlab.data.stores.layout import BlockLayout
from ditlab.data.stores.manifest import BLOCK_VERSION, StoredColumn, StoreManifest

MOST = 2**60
"""Largest number of rows, elements or bytes: what is computed from it fits 64 bits."""


def check_store(manifest: StoreManifest) -> None:
    """Raise ValueError, naming the key, for numbers of a plain store that contradict each other."""
    _check_numbers({"rows": manifest.rows}, least=1)
    _check_numbers({f"shards.{number}.rows": shard.rows for number, shard in enumerate(manifest.shards)}, least=1)
    _check_numbers({f"shards.{number}.bytes": shard.bytes for number, shard in enumerate(manifest.shards)})
    rows = sum(shard.rows for shard in manifest.shards)
    if rows != manifest.rows:
        raise ValueError(f"rows: {manifest.rows:,}, and the shards hold {rows:,}")
    if not manifest.columns:
        raise ValueError("columns: there are none")
    if manifest.version >= BLOCK_VERSION:
        _check_blocks(manifest)
    elif manifest.index or manifest.block_rows:
        raise ValueError(f"index: version {manifest.version} has none")
    for name, column in manifest.columns.items():
        _check_column(f"columns.{name}", column, manifest.rows)
    if manifest.text:
        _check_numbers({f"text.{key}": getattr(manifest.text, key) for key in ("documents", "tokens")}, least=1)
        _check_numbers({f"text.{key}": getattr(manifest.text, key) for key in ("bytes", "dropped")})


def _check_blocks(manifest: StoreManifest) -> None:
    _check_numbers({"block_rows": manifest.block_rows}, least=1)
    if manifest.index is None:
        raise ValueError("index: there is none")
    layout = BlockLayout.of([shard.rows for shard in manifest.shards], manifest.block_rows)
    size = layout.num_blocks * entry_bytes(len(manifest.columns))
    if manifest.index.bytes != size:
        raise ValueError(f"index.bytes: {manifest.index.bytes:,}, and {layout.num_blocks:,} blocks take {size:,}")


def _check_column(key: str, column: StoredColumn, rows: int) -> None:
    _check_numbers({f"{key}.shape.{axis}": size for axis, size in enumerate(column.shape)})
    count = rows * column.row_elements
    _check_numbers({f"{key}.shape": count})
    statistics, counts = column.statistics, column.statistics.class_counts
    if statistics.count != count:
        raise ValueError(f"{key}.statistics.count: {statistics.count:,}, and the column has {count:,} elements")
    if statistics.min > statistics.max or statistics.std < 0:
        raise ValueError(f"{key}.statistics: min is above max, or std below 0")
    if column.num_classes is not None:
        _check_numbers({f"{key}.num_classes": column.num_classes}, least=1)
    if len(counts or ()) != (column.num_classes or 0):
        raise ValueError(
            f"{key}.statistics.class_counts: {len(counts or ()):,} of them, and the column has "
            f"{column.num_classes or 0:,} classes"
        )
    if counts is not None:
        _check_numbers({f"{key}.statistics.class_counts.{number}": each for number, each in enumerate(counts)})
        if sum(counts) != count:
            raise ValueError(f"{key}.statistics.class_counts: they sum to {sum(counts):,}, and should to {count:,}")


def check_buckets(manifest: BucketsManifest) -> None:
    """Raise ValueError, naming the key, for numbers of a bucketed store that none has."""
    if not manifest.buckets:
        raise ValueError("buckets: there are none")
    for number, bucket in enumerate(manifest.buckets):
        sides = {"height": bucket.height, "width": bucket.width, "rows": bucket.rows}
        _check_numbers({f"buckets.{number}.{key}": value for key, value in sides.items()}, least=1)
    _check_numbers({f"facts.{key}": value for key, value in manifest.facts.items()})


def _check_numbers(numbers: Mapping[str, int], least: int = 0) -> None:
    for key, value in numbers.items():
        if not least <= value <= MOST:
            problem = f"below {least}" if value < least else "too large"
            raise ValueError(f"{key}: {problem}")
