"""Manifests of stores, `store.json`, and of bucketed ones, `buckets.json`: records, text,
fingerprint and checks.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict, TypeVar

import numpy as np
from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from ditlab.data.stores.receipt import ManifestRecord, PlainName, SourceReceipt
from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import parse_json
from ditlab_models.contract import ANY

MANIFEST_NAME = "store.json"
BUCKETS_NAME = "buckets.json"
FORMAT_VERSION = 7
"""Version that is written and read."""
DType = Literal[
    "bool", "uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"
]
RGB = "channel (red, green, blue), row, column"
"""Description of a column of coloured images."""
IMPORT_AGAIN = "import the data again with `ditlab data import`"


def folder_name(text: str) -> str:
    """Return a text as part of a folder's name, in which each run of unsuitable characters becomes
    `_`.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


class Autoencoder(ManifestRecord):
    """Autoencoder that made a column of latents."""

    source: str
    """Folder or place on the hub that it was read from."""
    sha256: str
    """SHA-256 of its weights."""
    scaling_factor: float
    """Factor of latents that a model is trained on."""
    shift_factor: float = 0.0
    """Number that is taken off latents before they are scaled."""


class Column(ManifestRecord):
    """Column of fixed-shape tensors, as declared by the writer of a store."""

    dtype: DType
    """Element type in the store; batches keep it until they are on the device."""
    shape: tuple[int, ...] = ()
    """Shape of a row; () is a scalar."""
    value_range: tuple[float, float] | None = None
    """Lowest and highest value that can occur: (0, 255) for 8-bit images. Null where no range is
    meant.
    """
    num_classes: PositiveInt | None = None
    """Number of classes of class indices, which lie in [0, num_classes) and are counted in the
    manifest.
    """
    unit: str = ""
    """Meaning of the numbers: `pixel intensity`, `class index`."""
    description: str = ""
    """Description for people."""
    names: tuple[str, ...] = ()
    """Names of the classes for class indices, else of the entries along the last axis; empty where
    they have none.
    """
    divisors: tuple[float, ...] = ()
    """Divisors by which the importer divided the entries along the last axis, 1 where it did not;
    empty for none.
    """
    autoencoder: Autoencoder | None = None
    """Autoencoder of latents, whose mean and log-variance the column holds; null for other
    columns.
    """

    @model_validator(mode="after")
    def _check(self) -> Column:
        if self.value_range is not None and not self.value_range[0] < self.value_range[1]:
            raise ValueError(f"value_range={self.value_range} must be (low, high) with low < high")
        entries = self.shape[-1] if self.shape else 0
        named = entries
        where = "along the last axis"
        if self.num_classes is not None:
            named = self.num_classes
            where = "classes"
        if self.names and len(self.names) != named:
            raise ValueError(f"names holds {len(self.names)}, and the column has {named} {where}")
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"names holds '{twice}' more than once")
        if self.divisors and len(self.divisors) != entries:
            raise ValueError(
                f"divisors holds {len(self.divisors)}, and the column has {entries} along the "
                "last axis"
            )
        if any(divisor <= 0 for divisor in self.divisors):
            raise ValueError(f"divisors holds {min(self.divisors):g}; every one must be above 0")
        return self

    @property
    def row_elements(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """Element type on disk: Arrow packs bool into bits, which no tensor can point at, so it is
        kept as uint8.
        """
        return np.dtype("uint8" if self.dtype == "bool" else self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on disk."""
        return self.row_elements * self.stored_dtype.itemsize


def class_column(description: str, num: int, names: Sequence[str] = ()) -> Column:
    """Return a column of class indices, int64 in [0, num); `names`: those of the classes, if they
    have any.
    """
    return Column(
        dtype="int64",
        num_classes=num,
        unit="class index",
        description=description,
        names=tuple(names),
    )


def image_column(shape: Sequence[int], description: str, highest: int = 255) -> Column:
    """Return a column of images (channels, height, width), uint8 in [0, highest]."""
    return Column(
        dtype="uint8",
        shape=tuple(shape),
        value_range=(0, highest),
        unit="pixel intensity",
        description=description,
    )


class ColumnStatistics(ManifestRecord):
    """Statistics of all elements of a column, over all rows."""

    count: int
    """Number of elements: rows times elements a row."""
    min: float
    max: float
    mean: float
    std: float
    """Population standard deviation."""
    class_counts: tuple[NonNegativeInt, ...] | None = None
    """Number of elements by class, for columns with `num_classes`."""

    def moments(self) -> Moments:
        """Return the moments, which merge with those of other rows."""
        return Moments(**self.model_dump(exclude={"std"}), squares=self.count * self.std**2)


class Moments(ManifestRecord):
    """Count, extrema, mean, squared deviations, class counts of rows, merged as in Chan, Golub and
    LeVeque (1979).
    """

    count: int = 0
    """Number of elements."""
    min: float = 0.0
    max: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared deviations from the mean."""
    class_counts: tuple[int, ...] | None = None
    """Number of elements by class, for columns with `num_classes`."""

    def merge(self, other: Moments) -> Moments:
        """Return the moments of these rows and others."""
        if not other.count:
            return self
        if not self.count:
            return other
        total = self.count + other.count
        delta = other.mean - self.mean
        counts = self.class_counts
        if counts is not None and other.class_counts is not None:
            counts = tuple(np.add(counts, other.class_counts).tolist())
        return Moments(
            count=total,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            mean=self.mean + delta * other.count / total,
            squares=self.squares + other.squares + delta * delta * self.count * other.count / total,
            class_counts=counts,
        )

    def statistics(self) -> ColumnStatistics:
        """Return the statistics of a store's column."""
        return ColumnStatistics(
            **self.model_dump(exclude={"squares"}), std=math.sqrt(self.squares / self.count)
        )


Columns = Mapping[str, Column]
"""Columns by name."""


def row_bytes(columns: Columns) -> int:
    """Return the bytes of a row of all columns on disk."""
    return sum(column.row_bytes for column in columns.values())


class StoredColumn(Column):
    """Column of a written store, with statistics and content hash."""

    statistics: ColumnStatistics
    sha256: str
    """Hash of the column's elements, row by row, little-endian. Of several blocks: see
    `block_index.column_hash`.
    """

    def visible(self) -> dict[str, Any]:
        """Return what training can see of the column, as values of JSON."""
        found: dict[str, Any] = {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "value_range": None,
            "num_classes": self.num_classes,
            "sha256": self.sha256,
        }
        if self.value_range is not None:
            found["value_range"] = [float(bound) for bound in self.value_range]
        if self.names:
            found["names"] = list(self.names)
        if self.autoencoder:
            found["autoencoder"] = self.autoencoder.model_dump(exclude={"source"})
        return found


class HashFile(ManifestRecord):
    """File of hashes: a store's index (see `block_index`), or the digests of a shard's pieces."""

    file: PlainName
    bytes: NonNegativeInt
    sha256: str


class StoreShard(ManifestRecord):
    """Arrow IPC file: a record batch for each of its blocks."""

    file: PlainName
    rows: PositiveInt
    bytes: NonNegativeInt
    sha256: str
    blocks: str
    """SHA-256 of its blocks' entries in the index file."""
    pieces: HashFile | None = None
    """File of the digests of its blocks' pieces; null for a small shard."""

    @property
    def stored_files(self) -> list[tuple[str, int, str]]:
        """Name, size and SHA-256 of its files."""
        files = [(self.file, self.bytes, self.sha256)]
        if self.pieces is not None:
            files.append((self.pieces.file, self.pieces.bytes, self.pieces.sha256))
        return files


class ImportedFile(ManifestRecord):
    """File that an importer read."""

    name: str
    md5: str
    """MD5 of the file as it was read."""
    check: Literal["md5", "unknown", "skipped"]
    """`md5`: equals the published one. `unknown`: none is published for this form. `skipped`: by
    the user.
    """
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
    options: dict[str, str | int | bool | None] = Field(default_factory=dict)
    """The importer's options by which rows can be added to the store; empty where none can."""


class TextFacts(ManifestRecord):
    """Facts about the text of a token store."""

    tokenizer: str
    """Name of the tokeniser for people: `bytes`, `bpe of 4,096`, `gpt2`."""
    documents: PositiveInt
    """Documents that hold any text; each is followed by one end token."""
    bytes: NonNegativeInt
    """Bytes of all documents in UTF-8. End tokens stand for none."""
    tokens: PositiveInt
    """Tokens of all documents, end tokens included, before the last incomplete row was dropped."""
    dropped: NonNegativeInt
    """Tokens of that last row: fewer than a row has."""

    @property
    def bytes_per_token(self) -> float:
        """Average UTF-8 bytes a token: bits a byte are bits a token divided by this."""
        return self.bytes / self.tokens


class StoreFacts(TypedDict, total=False):
    """Facts on a store beside its rows, as `writer.finish_store` takes them."""

    name: Required[str]
    description: str
    source: Required[Source]
    text: TextFacts | None
    attachments: Mapping[str, bytes] | None
    receipt: SourceReceipt | None


class StoreManifest(ManifestRecord):
    """Contents of `store.json`, which is written last: a store exists once it does."""

    format: Literal["ditlab-store"] = "ditlab-store"
    version: Literal[7] = 7
    name: PlainName
    description: str
    rows: PositiveInt
    columns: Annotated[dict[str, StoredColumn], Field(min_length=1)]
    shards: tuple[StoreShard, ...]
    block_rows: PositiveInt
    """Rows of a block; the last one of a shard may have fewer."""
    index: HashFile
    """Places and hashes of the blocks."""
    source: Source
    text: TextFacts | None = None
    """Facts about the text of a token store; null for any other store."""
    attachments: dict[PlainName, str] = Field(default_factory=dict)
    """Files beside the shards that the columns need to be understood, by name, with their SHA-256:
    the tokeniser.
    """
    receipt: SourceReceipt | None = None
    """Receipt of its import; null for data that are made, and below a bucketed store."""
    fingerprint: str
    """Fingerprint of the contents: see `computed_fingerprint`."""
    checksum: str = ""
    """Checksum of all other keys: see `format_manifest`."""

    @property
    def stored_files(self) -> Iterator[tuple[str, int | None, str]]:
        """Name, size (None where it is not known) and SHA-256 of each file beside the manifest."""
        yield from (file for shard in self.shards for file in shard.stored_files)
        yield self.index.file, self.index.bytes, self.index.sha256
        yield from ((name, None, sha256) for name, sha256 in self.attachments.items())

    def computed_fingerprint(self) -> str:
        """Return the SHA-256 (hex) of all that training can see: rows, attachments, and of each
        column its hash, dtype, shape, value range, number of classes, names, by which rows can be
        held out, and the autoencoder's weights and factors. Path, time, shard cuts and texts for
        people do not enter.
        """
        content: dict[str, Any] = {
            "rows": self.rows,
            "columns": {name: column.visible() for name, column in self.columns.items()},
        }
        if self.attachments:
            content["attachments"] = self.attachments
        return _digest(content)


class Bucket(ManifestRecord):
    """Store of images of one size, in a folder below the bucketed store's."""

    folder: PlainName
    """Folder named after size and contents: `256x192-1a2b3c4d`."""
    height: PositiveInt
    """Height in pixels."""
    width: PositiveInt
    """Width in pixels."""
    rows: PositiveInt
    fingerprint: str
    """Fingerprint of the store in the folder."""

    @property
    def size(self) -> str:
        """Size as text: `256x192`."""
        return f"{self.height}x{self.width}"


class BucketsManifest(ManifestRecord):
    """Contents of `buckets.json`, which is written last: a bucketed store exists once it does."""

    format: Literal["ditlab-buckets"] = "ditlab-buckets"
    version: Literal[7] = 7
    name: PlainName
    description: str
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1)]
    """Buckets by area, then height. Rows are numbered bucket after bucket."""
    source: Source
    receipt: SourceReceipt | None = None
    """Receipt of its import."""
    fingerprint: str
    """Fingerprint of the contents: see `computed_fingerprint`."""
    checksum: str = ""
    """Checksum of all other keys: see `format_manifest`."""

    def computed_fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the buckets' sizes and fingerprints in their order."""
        return _digest(
            [[bucket.height, bucket.width, bucket.fingerprint] for bucket in self.buckets]
        )

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


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as Python does, with `any` for an axis of any size: `(3, any, any)`."""
    return str(shape).replace(str(ANY), "any")


def merged_column(parts: Sequence[StoredColumn]) -> StoredColumn:
    """Merge a column of buckets that agree in all but sizes: axes of several sizes are ANY,
    statistics of all rows.
    """
    sizes = [set(axis) for axis in zip(*(part.shape for part in parts), strict=True)]
    moments = [part.statistics.moments() for part in parts]
    return StoredColumn(
        **parts[0].model_dump(exclude={"shape", "statistics", "sha256"}),
        shape=tuple(axis.pop() if len(axis) == 1 else ANY for axis in sizes),
        statistics=reduce(Moments.merge, moments).statistics(),
        sha256=hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest(),
    )


AnyManifest = StoreManifest | BucketsManifest
ManifestType = TypeVar("ManifestType", StoreManifest, BucketsManifest)


def format_manifest(manifest: AnyManifest) -> bytes:
    """Format a manifest as JSON, with a checksum: the SHA-256 (hex) of all other keys, sorted,
    without spaces.
    """
    content = manifest.model_dump(mode="json", exclude={"checksum"})
    return _laid_out({**content, "checksum": _digest(content)})


def has_own_layout(file: Path) -> bool:
    """Return True if a manifest's bytes are those that its values are written as; its checksum is
    of values alone.
    """
    content = file.read_bytes()
    return content == _laid_out(json.loads(content))


def read_manifest(file: Path, kind: type[ManifestType]) -> ManifestType:
    """Read the manifest in a file. Raises UserError where it is missing, and as `parse_manifest`
    does.
    """
    try:
        return parse_manifest(file.read_bytes(), kind, str(file))
    except OSError as error:
        raise UserError(
            f"{file.parent} holds no store ({file.name}: {first_line(error)}); name the folder "
            "of one, or one below DITLAB_HOME/stores, or write one with `ditlab data import`."
        ) from None


def is_of_another_version(file: Path) -> bool:
    """Return True for a manifest that another version of DiTLab wrote; False for any other file,
    and for none.
    """
    try:
        version = parse_json(file.read_bytes())["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(version != FORMAT_VERSION)


def parse_manifest(
    content: bytes, kind: type[ManifestType], place: str, remedy: str = IMPORT_AGAIN
) -> ManifestType:
    """Parse the manifest in a file's bytes. Raises UserError, naming the place, where they hold
    none, one of another version or that was altered, or one that names a file outside the store.
    """
    try:
        keys = parse_json(content)
        version = keys["version"]
        if version != FORMAT_VERSION:
            raise UserError(
                f"{place} is of format version {version!r:.20}, and version {FORMAT_VERSION} "
                f"is read here; {remedy}."
            )
        manifest = kind.model_validate_json(content, strict=True)
    except (ValueError, KeyError, TypeError) as error:  # pydantic's and json's are ValueErrors
        problem = first_line(error)
        if isinstance(error, KeyError):
            problem = f"it has no {problem}"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = (
                f"{'.'.join(map(str, first['loc']))[:100]}: "
                f"{first['msg'].removeprefix('Value error, ')}"
            )
        problem = re.sub(r"[^ -~]", "?", problem)  # keys of the file may hold anything
        raise UserError(f"{place} is not a store's manifest ({problem}); {remedy}.") from error
    if keys.pop("checksum", "") != _digest(keys):
        raise UserError(f"{place} was altered: its content does not give its checksum; {remedy}.")
    if manifest.computed_fingerprint() != manifest.fingerprint:
        raise UserError(
            f"{place} was altered: its content does not give its fingerprint; {remedy}."
        )
    return manifest


def _laid_out(keys: dict[str, Any]) -> bytes:
    return json.dumps(keys, indent=1).encode()


def _digest(content: Any) -> str:
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
