"""Spool of decoded images on disk, by size, until all are decoded and a set's columns are known."""

import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from ditlab.data.images.aspect_buckets import ImageSize
from ditlab.data.images.captions import CAPTION, caption_column, encode_captions
from ditlab.data.images.decoding import DecodedImage
from ditlab.data.images.feature_columns import FeatureColumns
from ditlab.data.stores.bucket_writer import PARTIAL, BucketPart
from ditlab.data.stores.manifest import Column
from ditlab.errors import UserError
from ditlab.progress import Progress

LABEL = "label"
"""Name of the column of classes."""
NO_CAPTIONS = np.zeros((0, 0), np.uint8)
BATCH_BYTES = 4 * 2**20
"""Bytes of pixels that are read back at a time, unless one image has more."""


class ImageSpool:
    """Files for each size in a folder of their own below a store's: pixels, captions padded to one length, classes.

    It keeps sources from being decoded twice. The folder is made with the first image and removed when the body ends.
    """

    def __init__(self, store: Path, caption_length: int):
        """Make a spool; without captions, `caption_length` is 0."""
        self.rows: dict[ImageSize, int] = {}
        """Number of images by size."""
        self._store, self._folder = store, store / f"{PARTIAL}{uuid.uuid4().hex}"
        self._padded = caption_length
        self._seen: dict[str, int] = {}
        """Numbers of the classes by name, in the order of their first images."""
        self._longest = 0
        """Bytes of the longest caption so far."""
        self._written = 0
        """Images read back so far."""

    def __enter__(self) -> "ImageSpool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._store.exists() and not any(self._store.iterdir()):
            self._store.rmdir()

    def __len__(self) -> int:
        return sum(self.rows.values())

    @property
    def pixel_bytes(self) -> int:
        """Bytes of all pixels."""
        return sum(rows * 3 * height * width for (height, width), rows in self.rows.items())

    @property
    def classes(self) -> list[str]:
        """Names of all classes that were seen, sorted: a class's number is its place here."""
        return sorted(self._seen)

    def see(self, label: str | None) -> int:
        """Record the class of an image, of one that is left out too; returns a number for it. None: no class."""
        return 0 if label is None else self._seen.setdefault(label, len(self._seen))

    def add(self, image: DecodedImage) -> None:
        """Append an image to those of its size. Raises UserError where the folder cannot be written."""
        contents = {
            "pixels": image.pixels,
            "captions": encode_captions([image.caption], self._padded),
            "classes": np.array([self.see(image.label)]),
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for kind, content in contents.items():
                with self._file(image.size, kind).open("ab") as file:
                    file.write(content.data)
        except OSError as error:
            raise UserError(
                f"{self._store} cannot be written ({error.strerror}); free space there (twice what the store takes is "
                "needed while it is made) or choose another folder with --out."
            ) from error
        self.rows[image.size] = self.rows.get(image.size, 0) + 1
        self._longest = max(self._longest, len(image.caption))

    def captions(self) -> Iterator[np.ndarray]:
        """Iterate over all captions, uint8 (rows, bytes of the longest) at a time."""
        for size in self.rows:
            yield from (batch[CAPTION] for batch in self._batches(size))

    def part(self, size: ImageSize, features: FeatureColumns, progress: Progress) -> BucketPart:
        """Return the images of one size in the order of `add`: columns image and caption, and those of features."""

        def batches() -> Iterator[dict[str, np.ndarray]]:
            for batch in self._batches(size):
                yield batch | features.compute(batch["image"], batch.get(CAPTION, NO_CAPTIONS))
                self._written += len(batch["image"])
                progress("writing", self._written, len(self), "images")

        return BucketPart(*size, {**self._columns(size), **features.columns(size)}, batches)

    def _columns(self, size: ImageSize) -> Mapping[str, Column]:
        columns = {
            "image": Column(
                dtype="uint8",
                shape=(3, *size),
                value_range=(0, 255),
                unit="pixel intensity",
                description="channel (red, green, blue), row, column",
            )
        }
        if self._padded:
            columns[CAPTION] = caption_column(self._longest)
        if self._seen:
            names = tuple(self.classes)
            columns[LABEL] = Column(
                dtype="int64",
                num_classes=len(names),
                unit="class index",
                description="the image's class",
                names=names,
            )
        return columns

    def _batches(self, size: ImageSize) -> Iterator[dict[str, np.ndarray]]:
        image_bytes = 3 * size.height * size.width
        at_once = max(1, BATCH_BYTES // image_bytes)
        ranks = np.argsort(np.argsort(list(self._seen)))  # from the order of first images to that of names
        with (
            self._file(size, "pixels").open("rb") as pixels,
            self._file(size, "captions").open("rb") as captions,
            self._file(size, "classes").open("rb") as classes,
        ):
            while len(content := np.fromfile(pixels, np.uint8, at_once * image_bytes)):
                images = content.reshape(-1, 3, *size)
                batch: dict[str, np.ndarray] = {"image": images}
                padded = np.fromfile(captions, np.uint8, len(images) * self._padded).reshape(len(images), self._padded)
                numbers = np.fromfile(classes, np.int64, len(images))
                if self._padded:
                    batch[CAPTION] = padded[:, : self._longest]
                if self._seen:
                    batch[LABEL] = ranks[numbers]
                yield batch

    def _file(self, size: ImageSize, kind: str) -> Path:
        return self._folder / f"{size.height}x{size.width}.{kind}"
