"""Real images and their classes, out of a data set's store."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from denoisers.contract import BatchField
from ditlab.data.fields import held_out_batches, to_device
from ditlab.data.manifest import StoredColumn
from ditlab.data.sampler import keyed_permutation
from ditlab.data.sources import DataSplits
from ditlab.data.view import View

RANGE = (-1.0, 1.0)
"""Of an image's values, as every image model has them."""
BATCH = 512  # images at once
LARGEST_FIT, LARGEST_REFERENCE, LARGEST_TRAIN = 20_000, 5_000, 60_000  # images


@dataclass(frozen=True)
class ImageFields:
    """Which columns hold the images and their classes."""

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


def find_fields(columns: Mapping[str, StoredColumn], shape: tuple[int, ...]) -> ImageFields | None:
    """The first column of images of this shape, and the first of class indices; None where either is missing."""
    images = [name for name, column in columns.items() if column.shape == shape and column.value_range is not None]
    labels = [name for name, column in columns.items() if column.shape == () and column.num_classes is not None]
    if len(shape) != 3 or not images or not labels:
        return None
    return ImageFields(
        BatchField(images[0], shape, "float32", value_range=RANGE),
        BatchField(labels[0], (), "int64", num_classes=columns[labels[0]].num_classes),
    )


@dataclass(frozen=True)
class RealImages:
    """The parts of a data set that quality figures use."""

    fit: View
    """What the classifier learns from: half of the training images, at most 20,000."""
    reference: View
    """What samples are compared with: the other training images, at most 5,000. The classifier never saw them, so to
    its features they are what held-out images are."""
    train: View
    """What samples may be copies of: the training images, at most 60,000."""
    held_out: View
    """What honest samples would look like."""


def real_images(data: DataSplits) -> RealImages:
    """The parts; a function of the split alone."""
    order = keyed_permutation("ditlab.quality", len(data.train))
    num = min(len(order) // 2, LARGEST_FIT)
    return RealImages(
        fit=_some(data.train, order[:num]),
        reference=_some(data.train, order[num : num + LARGEST_REFERENCE]),
        train=_some(data.train, order[:LARGEST_TRAIN]),
        held_out=data.held_out,
    )


def _some(view: View, indices: np.ndarray) -> View:
    return replace(view, rows=view.rows[indices])


def batches(
    view: View, fields: ImageFields, device: torch.device, num: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """(images in [-1, 1], labels) of a view's first `num` rows (None: all), some hundred at a time."""
    both = (fields.image, fields.label)
    for raw in held_out_batches(view, both, BATCH, num):
        batch = to_device(raw, both, view.columns, device)
        yield batch[fields.image.name], batch[fields.label.name]
