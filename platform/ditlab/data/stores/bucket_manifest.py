"""Manifest of a bucketed store: the records of `buckets.json`, and columns merged over buckets."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from denoisers.contract import ANY
from ditlab.data.stores.manifest import ColumnStatistics, ManifestRecord, Source, StoredColumn, TextFacts
from ditlab.data.stores.plain_names import PlainName

BUCKETS_NAME = "buckets.json"


class Bucket(ManifestRecord):
    """Store of images of one size, in a folder below the bucketed store's."""

    folder: PlainName
    """Folder named after size and contents: `256x192-1a2b3c4d`."""
    height: int
    """Height in pixels."""
    width: int
    """Width in pixels."""
    rows: int
    fingerprint: str
    """Fingerprint of the store in the folder."""

    @property
    def size(self) -> str:
        """Size as text: `256x192`."""
        return size_name(self.height, self.width)


class BucketsManifest(ManifestRecord):
    """Contents of `buckets.json`, which is written last: a bucketed store exists once it does."""

    format: Literal["ditlab-buckets"] = "ditlab-buckets"
    version: Literal[1, 2, 3] = 3
    name: PlainName
    description: str
    buckets: tuple[Bucket, ...]
    """Buckets by area, then height. Rows are numbered bucket after bucket."""
    source: Source
    facts: dict[str, int] = Field(default_factory=dict)
    """Counts of images that the importer left out or changed, by reason: `too small`."""
    notes: tuple[str, ...] = ()
    """Remarks on this import, for people, a line each."""
    files: dict[str, PlainName] = Field(default_factory=dict)
    """Lists for people beside this file: the name of the file that holds each, by the list's name."""
    fingerprint: str
    """Fingerprint of the contents: see `buckets_fingerprint`."""
    checksum: str = ""
    """Checksum of all other keys: see `manifest_parsing.format_manifest`. Empty in version 1."""

    @property
    def rows(self) -> int:
        """Rows of all buckets."""
        return sum(bucket.rows for bucket in self.buckets)

    @property
    def text(self) -> TextFacts | None:
        """None: buckets hold images, no tokens of a text."""
        return None

    @property
    def attachments(self) -> Mapping[str, str]:
        """Empty: a bucket's columns need no files beside their shards."""
        return {}


def size_name(height: int, width: int) -> str:
    """Return a size as text: `256x192`."""
    return f"{height}x{width}"


def buckets_fingerprint(buckets: Iterable[Bucket]) -> str:
    """Return the SHA-256 (hex) of the buckets' sizes and fingerprints in their order.

    Names, facts and notes do not enter.
    """
    content = [[bucket.height, bucket.width, bucket.fingerprint] for bucket in buckets]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def columns_agree(parts: Sequence[Mapping[str, StoredColumn]]) -> bool:
    """Return True if the columns of all buckets are the same in all but sizes, as `merged_column` needs."""

    def meaning(column: StoredColumn) -> tuple[object, ...]:
        declared = (column.dtype, column.value_range, column.num_classes, column.names, column.divisors)
        return (*declared, len(column.shape), column.statistics.class_counts is None)

    first = {name: meaning(column) for name, column in parts[0].items()}
    return all({name: meaning(column) for name, column in part.items()} == first for part in parts[1:])


def merged_column(parts: Sequence[StoredColumn]) -> StoredColumn:
    """Merge a column's buckets: axes whose sizes differ are ANY, statistics are those of all rows.

    `parts` must agree in all but sizes.
    """
    first = parts[0]
    assert columns_agree([{"": part} for part in parts]), "buckets hold different columns"
    sizes = [set(axis) for axis in zip(*(part.shape for part in parts), strict=True)]
    declared = first.model_dump(exclude={"shape", "statistics", "sha256"})
    return StoredColumn(
        **declared,
        shape=tuple(axis.pop() if len(axis) == 1 else ANY for axis in sizes),
        statistics=_merged_statistics([part.statistics for part in parts]),
        sha256=hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest(),
    )


def _merged_statistics(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    count = sum(part.count for part in parts)
    mean = math.fsum(part.count * part.mean for part in parts) / count
    squares = math.fsum(part.count * (part.std**2 + (part.mean - mean) ** 2) for part in parts)
    counts = [part.class_counts for part in parts if part.class_counts is not None]
    return ColumnStatistics(
        count=count,
        min=min(part.min for part in parts),
        max=max(part.max for part in parts),
        mean=mean,
        std=math.sqrt(squares / count),
        class_counts=tuple(map(sum, zip(*counts, strict=True))) if counts else None,
    )
