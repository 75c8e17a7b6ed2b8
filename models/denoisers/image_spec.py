"""Common fields of image networks' specs: the image, its classes, time. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from denoisers.contract import BatchField, FieldOptions, ModelSpec, PositiveInt


class ImageModelSpec(ModelSpec):
    """Base of a network that maps a square image, a time and perhaps a class to an image of the same shape."""

    image_size: PositiveInt = 28
    """Height and width of an image, in pixels."""
    channels: PositiveInt = 1
    """Colour channels of an image: 1 for grey, 3 for RGB."""
    num_classes: PositiveInt | None = None
    """Classes to condition on (labels 0 to num_classes - 1); null for an unconditional model."""
    label_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of training labels replaced by the null class, so that guidance works. Unused without classes."""
    time_scale: Annotated[float, Field(gt=0)] = 1.0
    """Multiplies t in [0, 1] before its sinusoid; 1000 spreads it over more of the frequencies."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return (self.channels, self.image_size, self.image_size)

    def batch_fields(self) -> tuple[BatchField, ...]:
        options = FieldOptions(shape=("model.channels", "model.image_size", "model.image_size"))
        image = BatchField("image", self.image_shape, "float32", (-1.0, 1.0), "pixel intensity", options=options)
        if self.num_classes is None:
            return (image,)
        options = FieldOptions(num_classes="model.num_classes")
        return (image, BatchField("label", (), "int64", None, "class index", self.num_classes, options=options))
