"""Columns of caption and image features, computed during an import so that training needs no encoder."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ditlab.data.images.aspect_buckets import ImageSize
from ditlab.data.images.captions import decode_captions
from ditlab.data.stores.manifest import Column

if TYPE_CHECKING:  # torch and transformers, which an import without encoders can do without
    from ditlab.encoders.image import FrozenImageEncoder
    from ditlab.encoders.text import FrozenTextEncoder

MEANING = {
    "text": ("feature", "token of the caption, feature; 0 behind its end"),
    "text_mask": ("", "true for tokens of the caption"),
    "text_pooled": ("feature", "of the caption's last token"),
    "image_features": ("feature", "patch (row by row), feature"),
}
"""Unit and description by column."""


@dataclass
class FeatureColumns:
    """Columns `text`, `text_mask` and `text_pooled` of a text encoder, `image_features` of an image encoder."""

    text: "FrozenTextEncoder | None"
    image: "FrozenImageEncoder | None"
    tokens: int = 0
    """Tokens of the longest caption."""

    @classmethod
    def open(cls, text: str | None, image: str | None, length: int, patch: int | None) -> "FeatureColumns":
        """Open encoders by folder or name, None for none; on a GPU where there is one, in float32.

        `length`: most tokens of a caption. Raises UserError for an encoder that cannot be opened or has other patches.
        """
        if text is None and image is None:
            return cls(None, None)
        from ditlab.encoders.features import encoding_device
        from ditlab.encoders.image import FrozenImageEncoder
        from ditlab.encoders.text import FrozenTextEncoder

        device = encoding_device()
        return cls(
            FrozenTextEncoder.open(text, None, length, device, knob="--encode-text") if text else None,
            FrozenImageEncoder.open(image, None, patch, device, knob="--encode-images") if image else None,
        )

    def measure(self, captions: Iterable[np.ndarray]) -> None:
        """Set the length of `text` to that of the longest of all captions, given (rows, bytes) at a time."""
        if self.text:
            from ditlab.encoders.features import longest_caption

            lengths = (longest_caption(self.text, decode_captions(rows)) for rows in captions)
            self.tokens = max(lengths, default=0)

    def columns(self, size: ImageSize) -> Mapping[str, Column]:
        """Return the columns of images of one size."""
        if self.text is None and self.image is None:
            return {}
        from ditlab.encoders.features import image_shapes, text_shapes

        shapes = text_shapes(self.text, self.tokens) if self.text else {}
        shapes |= image_shapes(self.image, *size) if self.image else {}
        return {
            name: Column.model_validate(
                {"dtype": dtype, "shape": shape, "unit": MEANING[name][0], "description": MEANING[name][1]}
            )
            for name, (dtype, shape) in shapes.items()
        }

    def compute(self, images: np.ndarray, captions: np.ndarray) -> dict[str, np.ndarray]:
        """Compute the columns of some rows. Raises UserError for features that are not finite."""
        if self.text is None and self.image is None:
            return {}
        from ditlab.encoders.features import image_columns, text_columns

        made = text_columns(self.text, decode_captions(captions), self.tokens) if self.text else {}
        return made | (image_columns(self.image, images) if self.image else {})
