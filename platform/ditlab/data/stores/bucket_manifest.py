"""What a bucketed store says about itself: the records of `buckets.json`, and its columns as one."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field

from denoisers.contract import ANY
from ditlab.data.stores.manifest import Record, Source, Statistics, StoredColumn, TextFacts
from ditlab.data.stores.plain_names import PlainName

BUCKETS_NAME = "buckets.json"


class Bucket(Record):
    """One store of images of one size, in a folder below the bucketed store's."""

    folder: PlainName
    """Named after its size and its contents: `256x192-1a2b3c4d`."""
    height: int
    """Pixels."""
    width: int
    """Pixels."""
    rows: int
    fingerprint: str
    """Of the store in the folder."""

    @property
    def size(self) -> str:
        return size_name(self.height, self.width)


class BucketsManifest(Record):
    """`buckets.json`: written last, so a bucketed store exists once it does."""

    format: Literal["ditlab-buckets"] = "ditlab-buckets"
    version: Literal[1] = 1
    name: PlainName
    description: str
    buckets: tuple[Bucket, ...]
    """By area, then height. Rows are numbered bucket after bucket."""
    source: Source
    facts: dict[str, int] = Field(default_factory=dict)
    """Counts of what the importer left out or changed, by name: `too small`."""
    notes: tuple[str, ...] = ()
    """What a person should know about this import, a line each."""
    files: dict[str, PlainName] = Field(default_factory=dict)
    """Lists for people beside this file: what each is called, and the name of the file that holds it."""
    fingerprint: str
    """See `buckets_fingerprint`."""

    @property
    def rows(self) -> int:
        return sum(bucket.rows for bucket in self.buckets)

    @property
    def text(self) -> TextFacts | None:
        """Buckets hold images, no tokens of a text."""
        return None

    @property
    def attachments(self) -> Mapping[str, str]:
        """Nothing beside a bucket's shards is needed to understand its columns."""
        return {}


def size_name(height: int, width: int) -> str:
    return f"{height}x{width}"


def buckets_fingerprint(buckets: Iterable[Bucket]) -> str:
    """SHA-256 (hex) over sizes and fingerprints of the buckets in their order; names, facts and notes do not enter."""
    content = [[bucket.height, bucket.width, bucket.fingerprint] for bucket in buckets]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def merged_column(parts: Sequence[StoredColumn]) -> StoredColumn:
    """One column out of the buckets' own: axes whose sizes differ are ANY, statistics are those of all rows.

    `parts` must agree in all but sizes.
    """
    first = parts[0]
    meaning = [(part.dtype, part.value_range, part.num_classes, part.names, part.divisors) for part in parts]
    assert len(set(meaning)) == 1 and len({len(part.shape) for part in parts}) == 1, "buckets hold different columns"
    sizes = [set(axis) for axis in zip(*(part.shape for part in parts), strict=True)]
    declared = first.model_dump(exclude={"shape", "statistics", "sha256"})
    return StoredColumn(
        **declared,
        shape=tuple(axis.pop() if len(axis) == 1 else ANY for axis in sizes),
        statistics=_merged_statistics([part.statistics for part in parts]),
        sha256=hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest(),
    )


def _merged_statistics(parts: Sequence[Statistics]) -> Statistics:
    count = sum(part.count for part in parts)
    mean = math.fsum(part.count * part.mean for part in parts) / count
    squares = math.fsum(part.count * (part.std**2 + (part.mean - mean) ** 2) for part in parts)
    counts = [part.class_counts for part in parts if part.class_counts is not None]
    return Statistics(
        count=count,
        min=min(part.min for part in parts),
        max=max(part.max for part in parts),
        mean=mean,
        std=math.sqrt(squares / count),
        class_counts=tuple(map(sum, zip(*counts, strict=True))) if counts else None,
    )
