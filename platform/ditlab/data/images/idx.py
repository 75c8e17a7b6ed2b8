"""Idx files, the format of MNIST: a magic number, sizes, unsigned bytes; gzipped or not."""

import gzip
import hashlib
import math
import os
import struct
import zlib
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import open_plain

IMAGES_MAGIC = 2051
"""0x0803: unsigned bytes, three sizes (images, rows, columns)."""
LABELS_MAGIC = 2049
"""0x0801: unsigned bytes, one size."""
MOST_BYTES = 2**30
"""Most bytes of a file's data, however it is packed: 1.3 million images of 28x28."""
CHUNK_BYTES = 2**20

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


def read_idx(path: Path, magic: int, item: tuple[int, ...] | None = None) -> IdxFile:
    """Read an idx file of images (2051) or labels (2049): its header, then as many bytes as that says, and one more.

    `item`: sizes that each image must have. Raises UserError, naming the file and its content, for another magic
    number, other sizes, a truncated file, or more bytes than its sizes say.
    """
    try:
        with open_plain(path, follow=True) as file:
            gzipped = file.peek(2)[:2] == b"\x1f\x8b"
            with gzip.GzipFile(fileobj=file) if gzipped else file as content:
                try:
                    values, content_md5 = _read(path, content, magic, item)
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    raise UserError(
                        f"{path} is a damaged or truncated gzip file of {os.fstat(file.fileno()).st_size} bytes "
                        f"({error}); fetch it again."
                    ) from error
        with open_plain(path, follow=True) as file:
            md5 = hashlib.file_digest(file, "md5").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); name the folder of other files.") from error
    return IdxFile(values, md5, content_md5, gzipped)


def _read(path: Path, content: BufferedIOBase, magic: int, item: tuple[int, ...] | None) -> tuple[np.ndarray, str]:
    """Return values, and the MD5 of header and data."""
    num_sizes = magic & 0xFF
    header = content.read(4 + 4 * num_sizes)
    sizes = _sizes(path, header, magic)
    if item is not None and tuple(sizes[1:]) != item:
        raise UserError(f"{path} holds images of {tuple(sizes[1:])} pixels, expected {item}; choose other files.")
    stated = math.prod(sizes)
    if stated > MOST_BYTES:
        raise UserError(
            f"{path} says that it holds {stated:,} bytes of data (sizes {sizes}), and at most {MOST_BYTES:,} are read; "
            "choose other files."
        )
    data, digest = bytearray(), hashlib.md5(header)
    while chunk := content.read(min(CHUNK_BYTES, stated + 1 - len(data))):
        data += chunk
        digest.update(chunk)
    if len(data) != stated:
        problem = f"is truncated: {len(data)}" if len(data) < stated else f"is longer than it says: more than {stated}"
        raise UserError(f"{path} {problem} bytes of data, and its sizes {sizes} need {stated}; fetch it again.")
    return np.frombuffer(data, np.uint8).reshape(sizes), digest.hexdigest()


def _sizes(path: Path, header: bytes, magic: int) -> list[int]:
    num_sizes = magic & 0xFF
    expected = f"idx {_CONTENT[magic]} (magic number {magic})"
    if len(header) < 4 + 4 * num_sizes:
        raise UserError(
            f"{path} is truncated: {len(header)} bytes cannot hold the header of {expected}; fetch it again."
        )
    found, *sizes = struct.unpack(f">{1 + num_sizes}I", header)
    if found != magic:
        content_note = f", which is idx {_CONTENT[found]}; the two files may be swapped" if found in _CONTENT else ""
        raise UserError(f"{path} starts with magic number {found}{content_note}; expected {expected}.")
    return sizes
