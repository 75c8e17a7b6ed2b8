"""Shards of MosaicML's streaming library: its format MDS, version 2, read without the library.

A shard is the number of samples, the offsets of their bytes and of the end, uint32 each, then a text of JSON, then the
samples. A sample is the sizes, uint32, of its values of no fixed size, then its values in the order of the columns
(mosaicml/streaming, streaming/base/format/mds). The index says which shards there are, and what their columns hold.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, NonNegativeInt, ValidationError

from ditlab.data.source_files import BadRecord, SourceFile, read_json, read_source
from ditlab.data.sources.tables import check_columns
from ditlab.errors import UserError, first_line

INDEX = "index.json"
_NUMBERS = {"int": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8"} | {
    f"{kind}int{bits}": f"<{kind or 'i'}{bits // 8}" for kind in ("", "u") for bits in (8, 16, 32, 64)
}


def _number(dtype: str, value: bytes) -> int | float:
    number: int | float = np.frombuffer(value, dtype)[0].item()
    return number


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **{name: partial(_number, dtype) for name, dtype in _NUMBERS.items()},
    **dict.fromkeys(("bytes", "jpeg", "png"), bytes),
    "str": bytes.decode,
    "json": json.loads,
    "str_int": int,
    "str_float": float,
}


class MdsFile(BaseModel):
    """File of a shard."""

    basename: str
    bytes: NonNegativeInt


class MdsShard(BaseModel):
    """Shard, as the index has it."""

    version: int
    format: str
    samples: NonNegativeInt
    column_names: tuple[str, ...]
    column_encodings: tuple[str, ...]
    column_sizes: tuple[NonNegativeInt | None, ...]
    compression: str | None = None
    raw_data: MdsFile
    zip_data: MdsFile | None = None


def read_index(file: SourceFile) -> list[MdsShard] | None:
    """Read an index; None for a file of this name that is another library's. Raises UserError for one not read here."""
    content = read_json(file)
    shards = content.get("shards") if isinstance(content, dict) else None
    if not isinstance(shards, list):
        return None
    try:
        read = [MdsShard.model_validate(shard) for shard in shards]
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{file.place} is no index of MDS shards (in `{place}`); write it again.") from error
    for shard in read:
        if (shard.format, shard.version) != ("mds", 2):
            raise UserError(
                f"{file.place}: {shard.raw_data.basename} has format {shard.format}, version {shard.version}, and mds, "
                "version 2, is read; write it again with MDSWriter."
            )
    return read


def shard_file(index: SourceFile, shard: MdsShard, files: Mapping[str, SourceFile]) -> SourceFile:
    """Return a shard's file, by the names of those that there are. Raises UserError where it cannot be read."""
    folder = PurePosixPath(index.name).parent
    if (plain := files.get(str(folder / shard.raw_data.basename))) is not None:
        return plain
    packed = shard.zip_data and files.get(str(folder / shard.zip_data.basename))
    if not packed:
        raise UserError(f"{index.place} names {shard.raw_data.basename}, which is not there; copy the folder whole.")
    if (shard.compression or "").partition(":")[0] != "zstd":
        raise UserError(
            f"{packed.place} is compressed ({shard.compression}), and plain shards or zstd are read; unpack it, or "
            "write it again without compression."
        )
    return packed


def mds_samples(file: SourceFile, shard: MdsShard, columns: Mapping[str, str]) -> Iterator[tuple[Any, ...] | BadRecord]:
    """Iterate over the samples of a shard: values of columns (by the flag that names each), or what is wrong with one.

    Text is str, images and bytes are bytes. A shard is held in memory, as the library's own have 64 MiB. Raises
    UserError for a column that is missing or no plain value, and errors of `tables.UNREADABLE`, after the samples
    before, for a shard that is damaged.
    """
    check_columns(file, columns, shard.column_names)
    decoders: list[tuple[int, Callable[[bytes], Any]]] = []
    for flag, column in columns.items():
        place = shard.column_names.index(column)
        encoding = shard.column_encodings[place].partition(":")[0]
        if encoding not in _DECODERS:
            raise UserError(
                f"{file.place}: '{column}' is stored as {encoding}, which is not read here; write it as str, bytes, "
                f"jpeg or png, or give {flag} with another column."
            )
        decoders.append((place, _DECODERS[encoding]))
    content = read_source(file)
    size = shard.raw_data.bytes
    if not file.name.endswith(shard.raw_data.basename):
        content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read(size + 1)
    if len(content) != size:
        raise ValueError(f"{len(content):,} bytes, and its index says {size:,}")
    head = np.frombuffer(content, "<u4", shard.samples + 2)
    if head[0] != shard.samples:
        raise ValueError(f"{head[0]:,} samples, and its index says {shard.samples:,}")
    for number, (begin, end) in enumerate(zip(head[1:-1].tolist(), head[2:].tolist(), strict=True)):
        if not head.nbytes <= begin <= end <= len(content):
            raise ValueError(f"sample {number} at bytes {begin:,} to {end:,} of {len(content):,}")
        values = _split(content[begin:end], shard.column_sizes)
        try:
            sample = tuple(decode(values[place]) for place, decode in decoders)
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
            yield BadRecord(first_line(error), "write it again")
        else:
            yield sample


def _split(sample: bytes, sizes: Sequence[int | None]) -> list[bytes]:
    """Split a sample into its values."""
    num = sum(not size for size in sizes)
    free = iter(np.frombuffer(sample, "<u4", num).tolist())
    values = []
    place = 4 * num
    for size in sizes:
        end = place + (size or next(free))
        values.append(sample[place:end])
        place = end
    if place != len(sample):
        raise ValueError(f"a sample of {len(sample):,} bytes, whose values have {place:,}")
    return values
