"""Shards of MosaicML's streaming library: its format MDS, version 2, read without the library.

A shard is the number of samples, the offsets of their bytes and of the end, uint32 each, then a text of JSON, then the
samples. A sample is the sizes, uint32, of its values of no fixed size, then its values in the order of the columns
(mosaicml/streaming, streaming/base/format/mds). The index says which shards there are, and what their columns hold.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from ditlab.data.block_imports.source_files import BadRecord, SourceFile, open_source, read_source
from ditlab.errors import UserError, first_line, nearest
from ditlab.storage.plain_files import MIB, parse_json

INDEX = "index.json"
INDEX_BYTES = 512 * MIB
"""Most bytes of an index: about a million shards."""
MOST_SAMPLE = 1024 * MIB
"""Most bytes of a sample."""
MOST_UNPACKED = 1024 * MIB
"""Most bytes of a compressed shard, which is unpacked in memory: the library's have 64 MiB."""
_SCALARS = {
    "int": "<q", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q", "uint8": "<B", "uint16": "<H",
    "uint32": "<I", "uint64": "<Q", "float16": "<e", "float32": "<f", "float64": "<d",
}  # fmt: skip


class MdsFile(BaseModel):
    """File of a shard."""

    basename: str
    bytes: NonNegativeInt


class MdsShard(BaseModel):
    """Shard, as the index has it."""

    model_config = ConfigDict(extra="ignore")

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
    try:
        content = parse_json(read_source(file, INDEX_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{file.place} cannot be read ({first_line(error)}); copy it again.") from error
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
        if not len(shard.column_names) == len(shard.column_encodings) == len(shard.column_sizes):
            raise UserError(f"{file.place}: {shard.raw_data.basename} has columns without a type; write it again.")
    return read


def shard_file(index: SourceFile, shard: MdsShard, files: Mapping[str, SourceFile]) -> SourceFile:
    """Return a shard's file, by the names of those that there are. Raises UserError where it cannot be read."""
    folder = PurePosixPath(index.name).parent
    if (plain := files.get(str(folder / shard.raw_data.basename))) is not None:
        return plain
    packed = shard.zip_data and files.get(str(folder / shard.zip_data.basename))
    if not packed:
        raise UserError(f"{index.place} names {shard.raw_data.basename}, which is not there; copy the folder whole.")
    if (shard.compression or "").partition(":")[0] != "zstd" or shard.raw_data.bytes > MOST_UNPACKED:
        raise UserError(
            f"{packed.place} is compressed ({shard.compression}, {shard.raw_data.bytes:,} bytes unpacked), and plain "
            "shards are read, or zstd of at most 1 GiB; unpack it, or write it again without compression."
        )
    return packed


def mds_samples(file: SourceFile, shard: MdsShard, columns: Mapping[str, str]) -> Iterator[tuple[Any, ...] | BadRecord]:
    """Iterate over the samples of a shard: values of columns (by the flag that names each), or what is wrong with one.

    Text is str, images and bytes are bytes. Raises UserError for a column that is missing or no plain value, and
    BadRecord, after the samples before, for a shard that is damaged.
    """
    decoders = [_decoder(file, shard, flag, column) for flag, column in columns.items()]
    with _reading(file), _opened(file, shard) as source:
        size = shard.raw_data.bytes
        if 4 * (shard.samples + 2) > size:
            raise ValueError(f"{size:,} bytes, too few for {shard.samples:,} samples")
        head = _read(source, 4 * (shard.samples + 2))
        (num,) = struct.unpack_from("<I", head)
        if num != shard.samples:
            raise ValueError(f"{num:,} samples, and its index says {shard.samples:,}")
        for number in range(num):
            begin, end = struct.unpack_from("<II", head, 4 + 4 * number)
            if not len(head) <= begin <= end <= size or end - begin > MOST_SAMPLE:
                raise ValueError(f"sample {number} at bytes {begin:,} to {end:,} of {size:,}")
            source.seek(begin)
            values = _split(_read(source, end - begin), shard.column_sizes)
            try:
                sample = tuple(decode(values[place]) for place, decode in decoders)
            except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
                yield BadRecord.at(f"{file.place}, sample {number}", first_line(error), "write it again")
            else:
                yield sample


def _decoder(file: SourceFile, shard: MdsShard, flag: str, column: str) -> tuple[int, Callable[[bytes], Any]]:
    if column not in shard.column_names:
        raise UserError(
            f"{file.place} has no column '{column}'; {nearest(column, list(shard.column_names))} Give {flag}."
        )
    place = shard.column_names.index(column)
    encoding = shard.column_encodings[place].partition(":")[0]
    if encoding in _SCALARS:
        return place, lambda value: struct.unpack(_SCALARS[encoding], value)[0]
    decoders: dict[str, Callable[[bytes], Any]] = {
        "bytes": bytes, "jpeg": bytes, "png": bytes, "str": bytes.decode, "json": json.loads,
        "str_int": int, "str_float": float,
    }  # fmt: skip
    if encoding not in decoders:
        raise UserError(
            f"{file.place}: '{column}' is stored as {encoding}, which is not read here; write it as str, bytes, jpeg "
            f"or png, or give {flag} with another column."
        )
    return place, decoders[encoding]


def _split(sample: bytes, sizes: Sequence[int | None]) -> list[bytes]:
    """Split a sample into its values."""
    num = sum(not size for size in sizes)
    free = iter(struct.unpack_from(f"<{num}I", sample))
    values, place = [], 4 * num
    for size in sizes:
        end = place + (size or next(free))
        values.append(sample[place:end])
        place = end
    if place != len(sample):
        raise ValueError(f"a sample of {len(sample):,} bytes, whose values have {place:,}")
    return values


@contextmanager
def _reading(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, MemoryError, struct.error) as error:
        reason = f"no MDS shard that can be read ({first_line(error)})"
        raise BadRecord(f"{file.place} is {reason}; copy it again.", file.place, reason) from error


@contextmanager
def _opened(file: SourceFile, shard: MdsShard) -> Iterator[BinaryIO]:
    """Open a shard; a compressed one is unpacked, up to as many bytes as its index says."""
    with open_source(file) as source:
        if file.name.endswith(PurePosixPath(shard.raw_data.basename).name):
            if file.size != shard.raw_data.bytes:
                raise ValueError(f"{file.size:,} bytes, and its index says {shard.raw_data.bytes:,}")
            yield source
            return
        import pyarrow as pa

        try:
            with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd") as stream:
                content: bytes = stream.read(shard.raw_data.bytes + 1)
        except pa.ArrowException as error:
            raise ValueError(first_line(error)) from error
        if len(content) != shard.raw_data.bytes:
            raise ValueError(f"it unpacks to other than the {shard.raw_data.bytes:,} bytes that its index says")
        yield BytesIO(content)


def _read(source: BinaryIO, num: int) -> bytes:
    content = source.read(num)
    if len(content) != num:
        raise ValueError("it ends too early")
    return content
