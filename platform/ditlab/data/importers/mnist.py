"""Importer of MNIST (LeCun, Cortes and Burges 1998) and data sets in its format, from a folder or by download."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ditlab.data.images.idx import IMAGES_MAGIC, LABELS_MAGIC, IdxFile, read_idx
from ditlab.data.import_request import ImportRequest
from ditlab.data.remote.download import download
from ditlab.data.stores.manifest import Column, ImportedFile, Source
from ditlab.data.stores.written import WrittenStore, write_store
from ditlab.errors import UserError
from ditlab.spec.importing import MnistOptions

OPTIONS = MnistOptions

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Public mirrors of the four .gz files, tried in turn."""

COLUMNS = {
    "image": Column(
        dtype="uint8",
        shape=(1, 28, 28),
        value_range=(0, 255),
        unit="pixel intensity",
        description="channel, row, column",
    ),
    "label": Column(dtype="int64", num_classes=10, unit="class index", description="the digit"),
}

BATCH_ROWS = 8192
"""Rows written at a time."""


@dataclass(frozen=True)
class PublishedFile:
    """File of MNIST as it was published."""

    stem: str
    """File name without .gz."""
    gz_md5: str
    """MD5 of the .gz file."""
    idx_md5: str | None
    """MD5 of the unpacked file; None where no published one is known."""

    def find(self, folder: Path) -> Path | None:
        """Find the file in a folder, gzipped or not, under its own name or with the dot of some unpackers."""
        dotted = self.stem.replace("-idx", ".idx")
        names = (f"{self.stem}.gz", self.stem, f"{dotted}.gz", dotted)
        return next((folder / name for name in names if os.path.lexists(folder / name)), None)


SPLITS = {
    "train": (
        PublishedFile("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873", None),
        PublishedFile("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432", None),
    ),
    "test": (
        PublishedFile("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        PublishedFile("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    ),
}


def run(request: ImportRequest[MnistOptions]) -> list[WrittenStore]:
    """Write `mnist-train` and `mnist-test`, or the one whose files `request.options.source` holds.

    Columns: image uint8 (1, 28, 28) in [0, 255], label int64. Raises UserError for missing, damaged or mismatched
    files, for a wrong MD5 (unless `request.options.checksum` is off), and where no mirror answers.
    """
    urls = {} if request.options.source else _download(request)
    folder = request.options.source or request.cache / "mnist"
    pairs = {split: (images.find(folder), labels.find(folder)) for split, (images, labels) in SPLITS.items()}
    imported = []
    for split, (images, labels) in pairs.items():
        if images and labels:
            imported.append(_import_split(split, images, labels, urls, request))
        elif images or labels:
            missing = SPLITS[split][0 if labels else 1].stem
            raise UserError(f"--source={folder} holds {(images or labels)!s} and no {missing}(.gz); add it there.")
    if not imported:
        names = ", ".join(file.stem for pair in SPLITS.values() for file in pair)
        raise UserError(f"--source={folder} holds none of {names} (.gz or not); name the folder that holds them.")
    return imported


def _download(request: ImportRequest[MnistOptions]) -> dict[str, str]:
    """Download the four .gz files into the cache; return URLs by file name of those not there before."""
    urls = {}
    names = [f"{file.stem}.gz" for pair in SPLITS.values() for file in pair]
    for file in (file for pair in SPLITS.values() for file in pair):
        name = f"{file.stem}.gz"
        try:
            url = download(name, file.gz_md5, MIRRORS, request.cache / "mnist", request.progress)
        except UserError as error:
            raise UserError(
                f"{error} Fetch the four files ({', '.join(names)}) on a machine that reaches a mirror and run "
                "`ditlab data import mnist --source DIR` with the folder that holds them."
            ) from error
        if url:
            urls[name] = url
    return urls


def _import_split(
    split: str, images: Path, labels: Path, urls: dict[str, str], request: ImportRequest[MnistOptions]
) -> WrittenStore:
    files = [read_idx(images, IMAGES_MAGIC, (28, 28)), read_idx(labels, LABELS_MAGIC)]
    pixels, classes = files[0].values, files[1].values
    if len(pixels) != len(classes):
        raise UserError(
            f"{images} holds {len(pixels)} images and {labels} {len(classes)} labels; take both from the same source."
        )
    provenance = tuple(
        ImportedFile(
            name=path.name,
            md5=file.md5,
            check=_check(path, file, published) if request.options.checksum else "skipped",
            url=urls.get(path.name),
        )
        for path, file, published in zip((images, labels), files, SPLITS[split], strict=True)
    )
    name = f"mnist-{split}"
    return write_store(
        request.out / name,
        COLUMNS,
        _batches(pixels, classes),
        name=name,
        description=f"{len(pixels):,} handwritten digits, 28x28 grey values ({split} files)",
        source=_source(provenance),
    )


def _check(path: Path, file: IdxFile, published: PublishedFile) -> Literal["md5", "unknown"]:
    """Compare a file with the published one: as .gz, or unpacked where that digest is published."""
    if file.md5 == published.gz_md5 or file.content_md5 == published.idx_md5:
        return "md5"
    if published.idx_md5 is None and not file.gzipped:
        return "unknown"
    expected = published.gz_md5 if file.gzipped else published.idx_md5
    raise UserError(
        f"{path} has MD5 {file.md5}, and MNIST's has {expected}; fetch it again, or pass --no-checksum where it is "
        "meant to be another data set in MNIST's format."
    )


def _source(files: tuple[ImportedFile, ...]) -> Source:
    checks = {file.check for file in files}
    note = ""
    if "skipped" in checks:
        note = "imported with --no-checksum: this may be another data set in MNIST's format"
    elif "unknown" in checks:
        note = "no MD5 is published for the unpacked training files: their contents were not checked"
    return Source(
        kind="mnist",
        files=files,
        citation="Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of handwritten digits (1998)",
        license="not stated by its authors; often given as CC BY-SA 3.0",
        note=note,
    )


def _batches(images: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, len(images), BATCH_ROWS):
        rows = slice(start, start + BATCH_ROWS)
        yield {"image": images[rows, None], "label": labels[rows].astype(np.int64)}
