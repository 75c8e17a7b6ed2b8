"""Features computed while a model trains or samples, by the encoders that its experiment names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.spec.encoders import Encoders

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class TextFeatureShape:
    """Size of the caption features that a model takes."""

    width: int
    """Features of a token."""
    length: int
    """Most tokens of a caption."""


@dataclass(frozen=True)
class ImageFeatureShape:
    """Size of the image features that a loss takes."""

    width: int
    """Features of a patch."""
    patch: int
    """Pixels of a patch's side."""


class FeatureExtractor:
    """Encoders of captions and images, each opened at its first use."""

    def __init__(
        self,
        spec: Encoders,
        text: TextFeatureShape | None,
        image: ImageFeatureShape | None,
        device: torch.device,
        downloads: Path | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Prepare the encoders of a spec. `text` or `image` None: the model and its loss take no such features."""
        self._spec, self._device, self._downloads, self._warn = spec, device, downloads, warn
        self._dtype = DTYPES[spec.precision]
        self._options: dict[str, Any] = {"cache": spec.cache, "compile": spec.compile, "downloads": downloads}
        self._text_shape = text if spec.text else None
        self._image_shape = image if spec.image else None
        self._text: FrozenTextEncoder | None = None
        self._image: FrozenImageEncoder | None = None
        self._warned_at = 0  # captions that were cut by the last warning

    @property
    def has_text(self) -> bool:
        """True if an encoder of captions is named, and the model takes its features."""
        return self._text_shape is not None

    @property
    def has_image(self) -> bool:
        """True if an encoder of images is named, and the loss takes its features."""
        return self._image_shape is not None

    def check(self, text: bool, image: bool) -> None:
        """Raise UserError for an encoder that could not be opened, as far as its files without weights show."""
        if text and self._text_shape:
            FrozenTextEncoder.check(self._spec.text or "", self._text_shape.width, downloads=self._downloads)
        if image and self._image_shape:
            shape = self._image_shape
            FrozenImageEncoder.check(self._spec.image or "", shape.width, shape.patch, downloads=self._downloads)

    def text(self) -> FrozenTextEncoder:
        """Return the encoder of captions. Raises UserError where it cannot be opened."""
        assert self._text_shape is not None, "encoders.text is not named, or its features are not used"
        if self._text is None:
            shape, place = self._text_shape, self._spec.text or ""
            self._text = FrozenTextEncoder.open(
                place, shape.width, shape.length, self._device, self._dtype, **self._options
            )
        return self._text

    def image(self) -> FrozenImageEncoder:
        """Return the encoder of images. Raises UserError where it cannot be opened."""
        assert self._image_shape is not None, "encoders.image is not named, or its features are not used"
        if self._image is None:
            shape, place = self._image_shape, self._spec.image or ""
            self._image = FrozenImageEncoder.open(
                place, shape.width, shape.patch, self._device, self._dtype, **self._options
            )
        return self._image

    def encode_texts(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Encode captions as `FrozenTextEncoder.encode`, with a warning once 1, 10, 100, ... of them have been cut."""
        encoder = self.text()
        features = encoder.encode(texts)
        if encoder.num_truncated >= max(1, 10 * self._warned_at):
            self._warned_at = encoder.num_truncated
            self._warn(
                f"encoders.text={self._spec.text}: captions longer than model.text_length={encoder.length} tokens are "
                f"cut to that ({encoder.num_truncated:,} so far); shorten them, or train with a higher "
                "model.text_length."
            )
        return features

    def encode_images(self, images: Tensor, stored: Tensor) -> Tensor:
        """Encode images as `FrozenImageEncoder.encode`."""
        return self.image().encode(images, stored)

    def free_image(self) -> None:
        """Free the encoder of images and its cached features. It is opened again at its next use."""
        self._image = None
