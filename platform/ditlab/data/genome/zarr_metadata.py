"""Checks of zarr's metadata before zarr reads them: known codecs, sizes that fit memory."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ditlab.data.genome.zarr_files import ZarrFiles
from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB, parse_json

METADATA = (".zarray", ".zattrs", ".zgroup", "zarr.json")
METADATA_BYTES = 16 * MIB
"""Most bytes of a file of metadata."""
COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
"""Codecs whose chunks are checked to be no larger than their array says (`zarr_chunks`)."""
NUMBER_FILTERS = (
    "adler32", "astype", "bitround", "crc32", "crc32c", "delta", "fixedscaleoffset", "fletcher32", "packbits",
    "quantize", "shuffle", "transpose",
)  # fmt: skip
TEXT_FILTERS = ("vlen-bytes", "vlen-utf8")
"""Filters of text of any length. No other filter of objects is read: pickles run code, the rest is unbounded."""


class RefusedArray(ValueError):
    """Array, or file of one, that is not read; the message says why."""


def array_metadata(files: ZarrFiles, key: str) -> Mapping[str, Any] | None:
    """Read the metadata of the array `key`; None where there is none.

    Raises OSError for a file that is not plain or too large, ValueError for one that is no JSON object, and
    RefusedArray for codecs that are not read.
    """
    for name, check in (("zarr.json", _check_format_3), (".zarray", _check_format_2)):
        if f"{key}/{name}" in files.named:
            metadata = parse_json(files.read(f"{key}/{name}", METADATA_BYTES))
            if not isinstance(metadata, dict):
                raise ValueError(f"{name} holds a {type(metadata).__name__}, no object")
            if name == ".zarray" or metadata.get("node_type") == "array":
                check(metadata)
                return metadata
    return None


def _check_format_2(metadata: Mapping[str, Any]) -> None:
    filters, compressor, dtype = metadata.get("filters") or [], metadata.get("compressor"), metadata.get("dtype", "")
    names = [_name(each, "id") for each in _listed(filters)]
    is_text = dtype == "|O"
    try:
        if not isinstance(dtype, str) or np.dtype(dtype).hasobject != is_text:
            raise RefusedArray("its values are records of several fields")
    except TypeError as error:
        raise RefusedArray(f"its dtype is unknown ({first_line(error)})") from error
    if is_text and (len(names) != 1 or names[0] not in TEXT_FILTERS):
        raise RefusedArray(f"its values are objects of {', '.join(names) or 'no filter'}, which may hold code")
    _check_known(names, TEXT_FILTERS if is_text else NUMBER_FILTERS)
    if compressor is not None:
        _check_known([_name(compressor, "id")], COMPRESSORS)


def _check_format_3(metadata: Mapping[str, Any]) -> None:
    names = [_name(each, "name") for each in _listed(metadata.get("codecs"))]
    if names == ["sharding_indexed"]:
        settings = metadata["codecs"][0].get("configuration") or {}
        index = [_name(each, "name") for each in _listed(settings.get("index_codecs"))]
        if index not in (["bytes"], ["bytes", "crc32c"]):
            raise RefusedArray(f"the index of its shards has the codecs {', '.join(index) or 'none'}")
        names = [_name(each, "name") for each in _listed(settings.get("codecs"))]
    _check_known(names, ("bytes", *TEXT_FILTERS, *NUMBER_FILTERS, *COMPRESSORS))
    if sum(name in COMPRESSORS for name in names) > 1:
        raise RefusedArray(f"its chunks are compressed more than once ({', '.join(names)})")


def holds_text(metadata: Mapping[str, Any]) -> bool:
    """Return True for an array whose chunks hold text of any length."""
    return any(filter_name in TEXT_FILTERS for filter_name in _filters(metadata))


def _filters(metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of an array's codecs: of format 2 without the compressor, of format 3 those within shards."""
    if metadata.get("zarr_format") == 2:
        return [_name(each, "id") for each in metadata.get("filters") or []]
    names = [_name(each, "name") for each in metadata["codecs"]]
    if names == ["sharding_indexed"]:
        names = [_name(each, "name") for each in metadata["codecs"][0]["configuration"]["codecs"]]
    return names


def _listed(codecs: Any) -> list[Any]:
    if not isinstance(codecs, list):
        raise RefusedArray("its codecs are no list")
    return codecs


def _name(codec: Any, key: str) -> str:
    name = codec.get(key) if isinstance(codec, dict) else codec
    return str(name)[:60]


def _check_known(names: list[str], known: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RefusedArray(f"its codec {unknown[0]!r} is not among those that are read ({', '.join(COMPRESSORS)})")


def compressor_of(metadata: Mapping[str, Any]) -> str:
    """Return the name of an array's compressor; empty for none."""
    if metadata.get("zarr_format") == 2:
        return _name(metadata["compressor"], "id") if metadata.get("compressor") else ""
    return next((name for name in _filters(metadata) if name in COMPRESSORS), "")
