"""What a store says about itself: the records of `store.json`, and the fingerprint of its contents."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

MANIFEST_NAME = "store.json"
FORMAT_VERSION = 1

DType = Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


class Record(BaseModel):
    """Base of the manifest's records: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Column(Record):
    """A column of fixed-shape tensors, as whoever writes a store declares it."""

    dtype: DType
    """Element type in the store; batches keep it until they are on the device."""
    shape: tuple[int, ...] = ()
    """Per row; () is a scalar."""
    value_range: tuple[float, float] | None = None
    """Lowest and highest value that can occur: (0, 255) for 8-bit images. Null where no range is meant."""
    num_classes: int | None = None
    """For class indices: values lie in [0, num_classes), and the manifest counts them."""
    unit: str = ""
    """What the numbers mean: `pixel intensity`, `class index`."""
    description: str = ""
    """A sentence for people."""

    @model_validator(mode="after")
    def _range_is_ordered(self) -> "Column":
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError(f"value_range={self.value_range} must be (low, high) with low < high")
        return self

    @property
    def row_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        return self.row_elements * np.dtype(self.dtype).itemsize


class Statistics(Record):
    """Of all elements of a column, over all rows."""

    count: int
    """Elements: rows times elements a row."""
    min: float
    max: float
    mean: float
    std: float
    """Population standard deviation."""
    class_counts: tuple[int, ...] | None = None
    """Rows by class, for columns with `num_classes`."""


class StoredColumn(Column):
    """A column as it lies in a store."""

    statistics: Statistics
    sha256: str
    """Of the column's elements, row by row, little-endian: the same however the rows are cut into shards."""


class Shard(Record):
    """One Arrow IPC file of one record batch."""

    file: str
    rows: int
    bytes: int
    sha256: str


class SourceFile(Record):
    """A file that an importer read."""

    name: str
    md5: str
    """Of the file as it was read."""
    check: Literal["md5", "unknown", "skipped"]
    """`md5`: equals the published one. `unknown`: none is published for this form. `skipped`: the user asked so."""
    url: str | None = None
    """Where it was downloaded from; null for a local file."""


class Source(Record):
    """Where the samples come from."""

    kind: str
    """The importer: `digits`, `mnist`."""
    files: tuple[SourceFile, ...] = ()
    citation: str = ""
    license: str = ""
    """What is known of the licence."""
    note: str = ""
    """Anything a person should know about this import."""


class Manifest(Record):
    """`store.json`: written last, so a store exists once it does."""

    format: Literal["ditlab-store"] = "ditlab-store"
    version: Literal[1] = 1
    name: str
    description: str
    rows: int
    columns: dict[str, StoredColumn]
    shards: tuple[Shard, ...]
    source: Source
    fingerprint: str
    """See `content_fingerprint`."""


def content_fingerprint(rows: int, columns: Mapping[str, StoredColumn]) -> str:
    """SHA-256 (hex) over what training can see of a store: per column its content hash, dtype, shape, range, classes.

    Path, time, shard cuts, pyarrow's version and the texts for people do not enter.
    """
    visible = {
        name: {
            "dtype": column.dtype,
            "shape": list(column.shape),
            "value_range": None if column.value_range is None else [float(v) for v in column.value_range],
            "num_classes": column.num_classes,
            "sha256": column.sha256,
        }
        for name, column in columns.items()
    }
    text = json.dumps({"rows": rows, "columns": visible}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
