"""Real images and their classes, read from a data set's store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod

import numpy as np
import torch
from torch import Tensor

from ditlab.data.loading.batches import held_out_batches, to_device
from ditlab.data.permutations import keyed_permutation
from ditlab.data.splits import DataSplits
from ditlab.data.stores.manifest import StoredColumn
from ditlab.data.stores.view import RowSequence, View
from ditlab_models.contract import BatchField
from ditlab_models.pixels import to_bytes

RANGE = (-1.0, 1.0)
"""Range of an image's values, the same for every image model."""
BATCH = 512  # images at once
LARGEST_BATCH = 2**24  # values of them
# images
LARGEST_FIT = 20_000
LARGEST_REFERENCE = 5_000
LARGEST_TRAIN = 60_000


@dataclass(frozen=True)
class ImageFields:
    """Columns of the images, and of their classes of one kind."""

    image: BatchField
    label: BatchField

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        channels, height, width = self.image.shape
        return channels, height, width

    @property
    def num_classes(self) -> int:
        assert self.label.num_classes is not None
        return self.label.num_classes


def find_image(columns: Mapping[str, StoredColumn], shape: tuple[int, ...]) -> BatchField | None:
    """Return the first column of images of this shape (channels, height, width); None where there
    is none.
    """
    names = [
        name
        for name, column in columns.items()
        if column.shape == shape and column.value_range is not None
    ]
    if len(shape) == 3 and names:
        return BatchField(names[0], shape, "float32", value_range=RANGE)
    return None


def find_fields(
    columns: Mapping[str, StoredColumn], shape: tuple[int, ...]
) -> tuple[ImageFields, ...]:
    """Return the images of this shape with each column of class indices, in the store's order;
    empty if any lacks.
    """
    image = find_image(columns, shape)
    if image is None:
        return ()
    return tuple(
        ImageFields(image, BatchField(name, (), "int64", num_classes=column.num_classes))
        for name, column in columns.items()
        if column.shape == () and column.num_classes is not None
    )


def image_sizes(view: View, shape: tuple[int, ...]) -> list[str]:
    """List the sizes of images with as many channels as `shape` in the view's store, as
    `height x width`.
    """
    shapes = set()
    for part in view.store.parts:
        for column in part.columns.values():
            is_image = len(column.shape) == 3 and column.value_range is not None
            if is_image and column.shape[:1] == shape[:1]:
                shapes.add(column.shape)
    return [f"{height} x {width}" for _, height, width in sorted(shapes)]


def restrict_to_size(view: View, shape: tuple[int, ...]) -> View:
    """Return the view's rows with images of this shape, where its store holds several sizes; else
    the view itself.
    """
    for number, part in enumerate(view.store.parts):
        if find_image(part.columns, shape) is not None:
            return view.in_part(number)
    return view


@dataclass(frozen=True)
class RealImages:
    """Parts of a data set that quality metrics use."""

    fit: View
    """Images that the classifier learns from: half of the training images, at most 20,000."""
    reference: View
    """Images that samples are compared with: the other training images, at most 5,000. The
    classifier never saw them, so to its features they are like held-out images."""
    train: View
    """Images that samples may be copies of: the training images, at most 60,000."""
    held_out: View
    """Held-out images: the level that perfect samples would reach."""


def real_images(data: DataSplits) -> RealImages:
    """Split the data set into the parts, a function of its split alone."""
    rows = data.train.rows
    if isinstance(rows, RowSequence):
        rows = rows.shuffled("ditlab.quality")[np.arange(min(len(rows), LARGEST_TRAIN))]
    else:
        rows = rows[keyed_permutation("ditlab.quality", len(rows))[:LARGEST_TRAIN]]
    num = min(len(data.train) // 2, LARGEST_FIT)
    parts = rows[:num], rows[num : num + LARGEST_REFERENCE], rows
    fit, reference, train = (replace(data.train, rows=part) for part in parts)
    return RealImages(fit, reference, train, data.held_out)


def batches(
    view: View, fields: ImageFields, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images in [-1, 1], labels) of a view's rows, some hundred at a time."""
    columns = (fields.image, fields.label)
    for raw in held_out_batches(view, columns, images_per_batch(fields.shape)):
        batch = to_device(raw, columns, view.columns, device)
        yield batch[fields.image.name], batch[fields.label.name]


def image_batches(
    view: View, image: BatchField, device: torch.device, num: int | None = None
) -> Iterator[Tensor]:
    """Yield the images alone of a view's first `num` rows (None: all), some hundred at a time."""
    for raw in held_out_batches(view, (image,), images_per_batch(image.shape), num):
        yield to_device(raw, (image,), view.columns, device)[image.name]


def images_per_batch(shape: Sequence[int]) -> int:
    """Return the images of this shape in a batch: BATCH, fewer where they are large (85 of 256 x
    256 pixels).
    """
    return max(1, min(BATCH, LARGEST_BATCH // prod(shape)))


def npz_of_images(images: Tensor) -> bytes:
    """Content of an .npz file of samples (num, channels, H, W) in [-1, 1] as ADM writes them:
    `arr_0`, uint8 NHWC. Raises NotFiniteError for NaN and infinities.
    """
    content = BytesIO()
    np.savez(content, to_bytes(images).permute(0, 2, 3, 1).expand(-1, -1, -1, 3).cpu().numpy())
    return content.getvalue()
