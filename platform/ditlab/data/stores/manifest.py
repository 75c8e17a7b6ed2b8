"""Manifest of a store: the records of `store.json`, and the fingerprint of its contents."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ditlab.data.stores.plain_names import PlainName

MANIFEST_NAME = "store.json"
BLOCK_VERSION = 3
"""First version of the format whose rows lie in blocks."""
FORMAT_VERSION = 3
"""Version that is written: rows in blocks that are hashed one by one. Read as well: version 2, with a checksum over the
manifest and one hash for each column, and version 1, without the checksum."""

DType = Literal["bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"]


class ManifestRecord(BaseModel):
    """Base of the manifest's records: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Column(ManifestRecord):
    """Column of fixed-shape tensors, as declared by the writer of a store."""

    dtype: DType
    """Element type in the store; batches keep it until they are on the device."""
    shape: tuple[int, ...] = ()
    """Shape of a row; () is a scalar."""
    value_range: tuple[float, float] | None = None
    """Lowest and highest value that can occur: (0, 255) for 8-bit images. Null where no range is meant."""
    num_classes: int | None = None
    """Number of classes of class indices, which lie in [0, num_classes) and are counted in the manifest."""
    unit: str = ""
    """Meaning of the numbers: `pixel intensity`, `class index`."""
    description: str = ""
    """Description for people."""
    names: tuple[str, ...] = ()
    """Names of the classes for class indices, else of the entries along the last axis; empty where they have none."""
    divisors: tuple[float, ...] = ()
    """Divisors by which the importer divided the entries along the last axis, 1 where it did not; empty for none."""

    @model_validator(mode="after")
    def _range_is_ordered(self) -> "Column":
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError(f"value_range={self.value_range} must be (low, high) with low < high")
        return self

    @model_validator(mode="after")
    def _names_and_divisors_fit(self) -> "Column":
        entries = self.shape[-1] if self.shape else 0
        named = entries if self.num_classes is None else self.num_classes
        if self.names and len(self.names) != named:
            where = "along the last axis" if self.num_classes is None else "classes"
            raise ValueError(f"names holds {len(self.names)}, and the column has {named} {where}")
        if len(set(self.names)) != len(self.names):
            twice = next(name for name, times in Counter(self.names).items() if times > 1)
            raise ValueError(f"names holds '{twice}' more than once")
        if self.divisors and len(self.divisors) != entries:
            raise ValueError(f"divisors holds {len(self.divisors)}, and the column has {entries} along the last axis")
        if any(divisor <= 0 for divisor in self.divisors):
            raise ValueError(f"divisors holds {min(self.divisors):g}; every one must be above 0")
        return self

    @property
    def row_elements(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape)

    @property
    def stored_dtype(self) -> "np.dtype[Any]":
        """Element type on disk: Arrow packs bool into bits, which no tensor can point at, so it is kept as uint8."""
        return np.dtype("uint8" if self.dtype == "bool" else self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on disk."""
        return self.row_elements * self.stored_dtype.itemsize


class ColumnStatistics(ManifestRecord):
    """Statistics of all elements of a column, over all rows."""

    count: int
    """Number of elements: rows times elements a row."""
    min: float
    max: float
    mean: float
    std: float
    """Population standard deviation."""
    class_counts: tuple[int, ...] | None = None
    """Number of elements by class, for columns with `num_classes`."""


class StoredColumn(Column):
    """Column of a written store, with statistics and content hash."""

    statistics: ColumnStatistics
    sha256: str
    """Hash of the column's elements, row by row, little-endian. Of several blocks: see `blocks.index.column_hash`."""


class StoreShard(ManifestRecord):
    """Arrow IPC file: a record batch for each of its blocks; in versions 1 and 2 a single one."""

    file: PlainName
    rows: int
    bytes: int
    sha256: str
    blocks: str = ""
    """SHA-256 of its blocks' entries in the index file; empty in versions 1 and 2."""


class IndexFile(ManifestRecord):
    """File of the blocks' places and hashes: see `blocks.index`."""

    file: PlainName
    bytes: int
    sha256: str


class ImportedFile(ManifestRecord):
    """File that an importer read."""

    name: str
    md5: str
    """MD5 of the file as it was read."""
    check: Literal["md5", "unknown", "skipped"]
    """`md5`: equals the published one. `unknown`: none is published for this form. `skipped`: by the user."""
    url: str | None = None
    """URL that it was downloaded from; null for a local file."""


class Source(ManifestRecord):
    """Origin of the samples."""

    kind: str
    """Importer or maker of the store: `digits`, `mnist`."""
    files: tuple[ImportedFile, ...] = ()
    citation: str = ""
    license: str = ""
    """Licence, as far as it is known."""
    note: str = ""
    """Remarks on this import, for people."""


class TextFacts(ManifestRecord):
    """Facts about the text of a token store."""

    tokenizer: str
    """Name of the tokeniser for people: `bytes`, `bpe of 4,096`, `gpt2`."""
    documents: int
    """Documents that hold any text; each is followed by one end token."""
    bytes: int
    """Bytes of all documents in UTF-8. End tokens stand for none."""
    tokens: int
    """Tokens of all documents, end tokens included, before the last incomplete row was dropped."""
    dropped: int
    """Tokens of that last row: fewer than a row has."""

    @property
    def bytes_per_token(self) -> float:
        """Average UTF-8 bytes a token: bits a byte are bits a token divided by this."""
        return self.bytes / self.tokens


class StoreManifest(ManifestRecord):
    """Contents of `store.json`, which is written last: a store exists once it does."""

    format: Literal["ditlab-store"] = "ditlab-store"
    version: Literal[1, 2, 3] = 3
    name: PlainName
    description: str
    rows: int
    columns: dict[str, StoredColumn]
    shards: tuple[StoreShard, ...]
    block_rows: int = 0
    """Rows of a block; the last one of a shard may have fewer. 0 in versions 1 and 2."""
    index: IndexFile | None = None
    """Places and hashes of the blocks; null in versions 1 and 2."""
    source: Source
    text: TextFacts | None = None
    """Facts about the text of a token store; null for any other store."""
    attachments: dict[PlainName, str] = Field(default_factory=dict)
    """Files beside the shards that the columns need to be understood, by name, with their SHA-256: the tokeniser."""
    fingerprint: str
    """Fingerprint of the contents: see `content_fingerprint`."""
    checksum: str = ""
    """Checksum of all other keys: see `manifest_parsing.format_manifest`. Empty in version 1."""


def content_fingerprint(
    rows: int, columns: Mapping[str, StoredColumn], attachments: Mapping[str, str] | None = None
) -> str:
    """Return the SHA-256 (hex) of all that training can see of a store.

    Per column these are content hash, dtype, shape, value range and number of classes. Names enter where there are any,
    as rows can be held out by the name of a class, and so do attachments, as they define the meaning of the numbers.
    Path, time, shard cuts, pyarrow's version and the texts for people do not.
    """
    visible = {
        name: {
            "dtype": column.dtype,
            "shape": list(column.shape),
            "value_range": None if column.value_range is None else [float(v) for v in column.value_range],
            "num_classes": column.num_classes,
            "sha256": column.sha256,
            **({"names": list(column.names)} if column.names else {}),
        }
        for name, column in columns.items()
    }
    content = {"rows": rows, "columns": visible, **({"attachments": dict(attachments)} if attachments else {})}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
