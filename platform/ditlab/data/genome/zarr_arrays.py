"""Groups and arrays of zarr, formats 2 and 3, opened and read with zarr's errors turned into messages."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.data.genome.zarr_chunks import check_chunks
from ditlab.data.genome.zarr_metadata import RefusedArray, array_metadata, check_metadata_files, chunk_files
from ditlab.errors import UserError, first_line

# Errors of zarr and its codecs for damaged metadata, unknown types and codecs, and damaged chunks.
UNREADABLE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, ImportError,
    MemoryError, ArithmeticError,
)  # fmt: skip

CHUNK_NAME = re.compile(r"(c[/.])?[0-9]+([/.][0-9]+)*|c")
"""Pattern of the names of an array's files of chunks, below its folder."""


def open_group(path: Path) -> Any:
    """Open the zarr group in a folder. Raises UserError where zarr is not installed, or the folder is no group."""
    try:
        import zarr
    except ImportError as error:
        raise UserError(
            "reading GET's stores needs zarr, which is not installed; `pip install 'ditlab[get]'` brings it."
        ) from error
    try:
        check_metadata_files(path)
        return zarr.open_group(path, mode="r", use_consolidated=False)  # a copy of the metadata, which may differ
    except UNREADABLE as error:
        raise UserError(f"--source={path} is no zarr store ({first_line(error)}); name the folder of one.") from error


def open_array(path: Path, group: Any, key: str) -> Any:
    """Open the array `key` (`atpm/T`) of the group in `path`, once all its files have been checked.

    Raises UserError where it cannot be opened, and for codecs and sizes that are not read.
    """
    folder = path / key
    try:
        check_metadata_files(folder.parent)
        metadata = array_metadata(folder)
        found = group[key]
        is_array = isinstance(found.shape, tuple)
        if is_array and metadata is not None:
            check_chunks(folder, found, metadata)
    except RefusedArray as error:
        raise UserError(f"{path}: {key} is not read: {error}; copy or export it again.") from error
    except AttributeError:  # a group has no shape; zarr takes an array of format 2 whose metadata lack theirs for one
        is_array = False
    except UNREADABLE as error:
        raise UserError(
            f"{path}: {key} cannot be opened ({first_line(error)}); copy the store again, or install its codec or a "
            "newer zarr."
        ) from error
    if not is_array:
        raise UserError(f"{path}: {key} is no array; copy the store again, or name the folder of another.")
    return found


def read_array(path: Path, key: str, array: Any, part: slice) -> np.ndarray:
    """Read a part of an array. Raises UserError where a chunk cannot be read."""
    try:
        return np.asarray(array[part])
    except UNREADABLE as error:
        rows = "" if part.start is None else f" from row {part.start:,}"
        raise UserError(f"{path}: {key} cannot be read{rows} ({error}); copy the store again.") from error


def members(folder: Path) -> list[str]:
    """List the members of a group's folder by name, whether or not they can be opened."""
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def missing_files(path: Path, array: Any) -> int:
    """Count the chunks of the array in `path` (shards, where it has them) without a file: zarr reads these as zeros."""
    grid = (math.ceil(num / size) for num, size in zip(array.shape, array.shards or array.chunks, strict=True))
    there = sum(bool(CHUNK_NAME.fullmatch(file.relative_to(path).as_posix())) for file in chunk_files(path))
    return math.prod(grid) - there
