"""Importer of MNIST (LeCun, Cortes and Burges 1998) and data sets in its format, from a folder or
by download.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import math
import os
import struct
import urllib.request
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ditlab.data.importing import ImportRequest
from ditlab.data.stores.duplicates import REPEATS, content_digests, duplicate_rows
from ditlab.data.stores.manifest import ImportedFile, Source, class_column, image_column
from ditlab.data.stores.writing import WrittenStore, write_store
from ditlab.errors import UserError, first_line
from ditlab.progress import Progress
from ditlab.spec.importing import MnistOptions
from ditlab.storage.files import write_durably

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Public mirrors of the four .gz files, tried in turn."""

COLUMNS = {
    "image": image_column((1, 28, 28), "channel, row, column"),
    "label": class_column("the digit", 10),
}

IMAGES_MAGIC = 2051
"""0x0803: unsigned bytes, three sizes (images, rows, columns)."""
LABELS_MAGIC = 2049
"""0x0801: unsigned bytes, one size."""
_CONTENT = {IMAGES_MAGIC: "images", LABELS_MAGIC: "labels"}
MIRROR_TIMEOUT = 20.0
"""Seconds without an answer or a byte before a mirror is given up."""
DOWNLOAD_CHUNK_BYTES = 64 * 1024


Check = Literal["md5", "unknown", "skipped"]
"""Check of a file, as `ImportedFile` has it."""


class PublishedFile(NamedTuple):
    """File of MNIST as it was published."""

    stem: str
    """File name without .gz."""
    gz_md5: str
    """MD5 of the .gz file."""
    idx_md5: str | None = None
    """MD5 of the unpacked file; None where no published one is known."""


SPLITS = {
    "train": (
        PublishedFile("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        PublishedFile("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
    ),
    "test": (
        PublishedFile(
            "t10k-images-idx3-ubyte",
            "9fb629c4189551a2d022fa330f9573f3",
            "2646ac647ad5339dbf082846283269ea",
        ),
        PublishedFile(
            "t10k-labels-idx1-ubyte",
            "ec29112dd5afa0611ce80d1b7f02629c",
            "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
}
PUBLISHED = [*SPLITS["train"], *SPLITS["test"]]


def import_mnist(request: ImportRequest[MnistOptions]) -> list[WrittenStore]:
    """Write `mnist-train` and `mnist-test`, or the one whose files `request.options.source` holds.

    Columns: image uint8 (1, 28, 28) in [0, 255], label int64. Raises UserError for missing, damaged
    or mismatched files, for a wrong MD5 (unless `request.options.checksum` is off), and where no
    mirror answers.
    """
    folder = request.options.source
    urls = dict[str, str]()
    if not folder:
        folder = request.cache / "mnist"
        urls = _download_published(folder, request.progress)
    imported = []
    for split, pair in SPLITS.items():
        images, labels = (_unpacked_or_not(folder, file.stem) for file in pair)
        if images and labels:
            imported.append(_import_split(split, images, labels, urls, request))
        elif images or labels:
            missing = pair[0] if labels else pair[1]
            raise UserError(
                f"--source={folder} holds {images or labels} and no {missing.stem}(.gz); add it "
                "there."
            )
    if not imported:
        expected = ", ".join(file.stem for file in PUBLISHED)
        raise UserError(
            f"--source={folder} holds none of {expected} (.gz or not); name the folder that "
            "holds them."
        )
    return imported


def _download_published(folder: Path, progress: Progress) -> dict[str, str]:
    """Download the files that are not there; returns their URLs by file name. Raises UserError as
    `download` does.
    """
    urls = {}
    for file in PUBLISHED:
        name = f"{file.stem}.gz"
        try:
            url = download(name, file.gz_md5, MIRRORS, folder, progress)
        except UserError as error:
            raise UserError(
                f"{error} Fetch the four files "
                f"({', '.join(f'{file.stem}.gz' for file in PUBLISHED)}) on a machine that "
                "reaches a mirror and run `ditlab data import mnist --source DIR` with the "
                "folder that holds them."
            ) from error
        if url:
            urls[name] = url
    return urls


def _unpacked_or_not(folder: Path, stem: str) -> Path | None:
    """Return the file of a stem, gzipped or not, under its own name or with the dot of some
    unpackers; else None.
    """
    for name in (stem, stem.replace("-idx", ".idx")):
        for file in (folder / f"{name}.gz", folder / name):
            if os.path.lexists(file):
                return file
    return None


def _import_split(
    split: str,
    images: Path,
    labels: Path,
    urls: dict[str, str],
    request: ImportRequest[MnistOptions],
) -> WrittenStore:
    found = {images: read_idx(images, IMAGES_MAGIC), labels: read_idx(labels, LABELS_MAGIC)}
    pixels = found[images].values
    classes = found[labels].values
    if pixels.shape[1:] != (28, 28):
        raise UserError(
            f"{images} holds images of {pixels.shape[1:]} pixels, expected (28, 28); choose "
            "other files."
        )
    if len(pixels) != len(classes):
        raise UserError(
            f"{images} holds {len(pixels)} images and {labels} {len(classes)} labels; take "
            "both from the same source."
        )
    provenance = []
    for (path, file), published in zip(found.items(), SPLITS[split], strict=True):
        check: Check = "skipped"
        if request.options.checksum:
            check = _check_md5(path, file, published)
        provenance.append(
            ImportedFile(name=path.name, md5=file.md5, check=check, url=urls.get(path.name))
        )
    checks = {file.check for file in provenance}
    note = ""
    if "skipped" in checks:
        note = "imported with --no-checksum: this may be another data set in MNIST's format"
    elif "unknown" in checks:
        note = (
            "no MD5 is published for the unpacked training files: their contents were not checked"
        )
    images_of_digits = pixels[:, None]
    duplicates = duplicate_rows(content_digests(images_of_digits))
    if len(duplicates):
        note = "; ".join(filter(None, [note, f"{len(duplicates):,} {REPEATS}"]))
    name = f"mnist-{split}"
    return write_store(
        request.out / name,
        COLUMNS,
        [{"image": images_of_digits, "label": classes.astype(np.int64)}],
        name=name,
        attachments=duplicates.attachments(request.options.keep_duplicates),
        description=f"{len(pixels):,} handwritten digits, 28x28 grey values ({split} files)",
        source=Source(
            kind="mnist",
            files=tuple(provenance),
            citation=(
                "Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten "
                "digits (1998)"
            ),
            license="not stated by its authors; often given as CC BY-SA 3.0",
            note=note,
        ),
    )


def _check_md5(path: Path, file: IdxFile, published: PublishedFile) -> Check:
    """Compare a file with the published one. Raises UserError where its MD5 is another."""
    if file.md5 == published.gz_md5 or file.content_md5 == published.idx_md5:
        return "md5"
    expected = published.gz_md5 if file.gzipped else published.idx_md5
    if expected is None:
        return "unknown"
    raise UserError(
        f"{path} has MD5 {file.md5}, and MNIST's has {expected}; fetch it again, or pass "
        "--no-checksum where it is meant to be another data set in MNIST's format."
    )


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
    """Read an idx file of images (2051) or labels (2049), gzipped or not. Raises UserError for any
    other or damaged.
    """
    try:
        content = packed = path.read_bytes()
        gzipped = packed[:2] == b"\x1f\x8b"
        if gzipped:
            content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({first_line(error)}); fetch it again.") from error
    num_sizes = magic & 0xFF
    header = 4 + 4 * num_sizes
    found, *sizes = struct.unpack(f">{1 + num_sizes}I", content[:header].ljust(header, b"\0"))
    if found != magic:
        raise UserError(
            f"{path} starts with magic number {found}, and idx {_CONTENT[magic]} with {magic}; "
            "the files may be swapped, or this is no idx file."
        )
    if len(content) != header + math.prod(sizes):
        raise UserError(
            f"{path} is not whole: {len(content)} bytes, and its sizes {sizes} need "
            f"{header + math.prod(sizes)}; fetch it again."
        )
    values = np.frombuffer(content, np.uint8, offset=header).reshape(sizes)
    return IdxFile(
        values, hashlib.md5(packed).hexdigest(), hashlib.md5(content).hexdigest(), gzipped
    )


def download(
    name: str, md5: str, mirrors: Sequence[str], folder: Path, progress: Progress
) -> str | None:
    """Download `folder/name` from the first of the mirrors (URL prefixes ending in /) that gives a
    file of this MD5.

    Returns the URL, or None where it was there already. Raises UserError with each mirror's reason
    where none gives it.
    """
    target = folder / name
    with suppress(OSError):
        if hashlib.md5(target.read_bytes()).hexdigest() == md5:
            return None
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for mirror in mirrors:
        url = mirror + name
        content = bytearray()
        try:
            with urllib.request.urlopen(url, timeout=MIRROR_TIMEOUT) as answer:
                total = int(answer.headers.get("Content-Length") or 0)
                while chunk := answer.read(DOWNLOAD_CHUNK_BYTES):
                    content += chunk
                    progress(name, len(content), total or None)
            found = hashlib.md5(content).hexdigest()
            if found == md5:
                write_durably(target, bytes(content))
                return url
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            reasons.append(f"{url}: {getattr(error, 'reason', None) or error}")
        else:
            reason = f"its MD5 is {found}, expected {md5}"
            if len(content) < total:
                reason = f"the connection ended after {len(content)} of {total} bytes"
            reasons.append(f"{url}: {reason}")
    raise UserError(f"{name} could not be downloaded ({'; '.join(reasons)}).")
