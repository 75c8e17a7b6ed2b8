"""Shards of a block's images, a series for each size."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from ditlab.data.images.aspect_buckets import ImageSize
from ditlab.data.images.captions import CAPTION, caption_column, encode_captions
from ditlab.data.images.decoding import DecodedImage
from ditlab.data.stores.bucket_manifest import size_name
from ditlab.data.stores.layout import block_rows
from ditlab.data.stores.manifest import Column
from ditlab.data.stores.shards import ShardSeries, WrittenShard

LABEL = "label"
"""Name of the column of classes."""


def image_columns(size: ImageSize, caption_length: int, classes: Sequence[str]) -> dict[str, Column]:
    """Return the columns of images of one size.

    `caption_length`: bytes of a caption, 0 without captions; `classes`: their names, none without classes.
    """
    columns = {
        "image": Column(
            dtype="uint8",
            shape=(3, *size),
            value_range=(0, 255),
            unit="pixel intensity",
            description="channel (red, green, blue), row, column",
        )
    }
    if caption_length:
        columns[CAPTION] = caption_column(caption_length)
    if classes:
        columns[LABEL] = Column(
            dtype="int64",
            num_classes=len(classes),
            unit="class index",
            description="the image's class",
            names=tuple(classes),
        )
    return columns


class BucketShards:
    """Shards of images in folders by size, written as the images come: a few megabytes of each size are in memory.

    Without a call of `finish`, nothing is left.
    """

    def __init__(self, folder: Path, prefix: str, caption_length: int, classes: Sequence[str]):
        self.rows = 0
        """Images so far."""
        self._folder, self._prefix = folder, prefix
        self._caption_length, self._classes = caption_length, tuple(classes)
        self._numbers = {name: number for number, name in enumerate(classes)}
        self._series: dict[ImageSize, ShardSeries] = {}

    def __enter__(self) -> "BucketShards":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for series in self._series.values():
            series.close()

    def add(self, image: DecodedImage) -> None:
        """Append an image to those of its size. Raises OSError as the disk does."""
        batch: dict[str, np.ndarray] = {"image": image.pixels[None]}
        if self._caption_length:
            batch[CAPTION] = encode_captions([image.caption], self._caption_length)
        if self._classes:
            assert image.label is not None, "a source with classes gives one to each image"
            batch[LABEL] = np.array([self._numbers[image.label]])
        self._of(image.size).append(batch)
        self.rows += 1

    def finish(self) -> Mapping[str, tuple[WrittenShard, ...]]:
        """Close all shards; returns them by size name. Raises OSError as the disk does."""
        return {size_name(*size): tuple(series.finish()) for size, series in sorted(self._series.items())}

    def _of(self, size: ImageSize) -> ShardSeries:
        if size not in self._series:
            columns = image_columns(size, self._caption_length, self._classes)
            folder = self._folder / size_name(*size)
            folder.mkdir(parents=True, exist_ok=True)
            rows = block_rows(sum(column.row_bytes for column in columns.values()))
            self._series[size] = ShardSeries(folder, self._prefix, columns, rows)
        return self._series[size]
