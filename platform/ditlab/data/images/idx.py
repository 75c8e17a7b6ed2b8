"""Idx files, the format of MNIST: a magic number, sizes, unsigned bytes; gzipped or not."""

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ditlab.errors import UserError

IMAGES_MAGIC = 2051
"""0x0803: unsigned bytes, three sizes (images, rows, columns)."""
LABELS_MAGIC = 2049
"""0x0801: unsigned bytes, one size."""

_CONTENT = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}


@dataclass(frozen=True)
class IdxFile:
    """Content of an idx file."""

    values: np.ndarray
    """uint8, in the sizes that the file states."""
    md5: str
    """MD5 of the file on disk."""
    content_md5: str
    """MD5 of the idx bytes, once a gzipped file is unpacked."""
    gzipped: bool


def read_idx(path: Path, magic: int) -> IdxFile:
    """Read an idx file of images (2051) or labels (2049).

    Raises UserError, naming the file and its content, for another magic number, a truncated file, or more bytes
    than its sizes say.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    gzipped = raw[:2] == b"\x1f\x8b"
    try:
        content = gzip.decompress(raw) if gzipped else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path} is a damaged or truncated gzip file of {len(raw)} bytes ({error}); fetch it again."
        ) from error
    values = _parse(path, content, magic)
    return IdxFile(values, hashlib.md5(raw).hexdigest(), hashlib.md5(content).hexdigest(), gzipped)


def _parse(path: Path, content: bytes, magic: int) -> np.ndarray:
    num_sizes = magic & 0xFF
    header = 4 + 4 * num_sizes
    expected = f"idx {_CONTENT[magic]} (magic number {magic})"
    if len(content) < header:
        raise UserError(
            f"{path} is truncated: {len(content)} bytes cannot hold the header of {expected}; fetch it again."
        )
    found, *sizes = struct.unpack(f">{1 + num_sizes}I", content[:header])
    if found != magic:
        content_note = f", which is idx {_CONTENT[found]}; the two files may be swapped" if found in _CONTENT else ""
        raise UserError(f"{path} starts with magic number {found}{content_note}; expected {expected}.")
    size, stated = len(content) - header, math.prod(sizes)
    if size != stated:
        problem = "is truncated" if size < stated else "is longer than it says"
        raise UserError(f"{path} {problem}: {size} bytes of data, and its sizes {sizes} need {stated}; fetch it again.")
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
