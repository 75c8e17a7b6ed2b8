"""Features made while a model trains or samples, by the encoders that its experiment names."""

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
class TextWish:
    """What a model wants captions encoded as."""

    width: int
    length: int


@dataclass(frozen=True)
class ImageWish:
    """What a loss wants images encoded as."""

    width: int
    patch: int


class FeatureMaker:
    """Opens each encoder at its first use. `text` or `image` None: the model has no use for one."""

    def __init__(
        self,
        spec: Encoders,
        text: TextWish | None,
        image: ImageWish | None,
        device: torch.device,
        downloads: Path | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._spec, self._device, self._downloads, self._warn = spec, device, downloads, warn
        self._dtype = DTYPES[spec.precision]
        self._how: dict[str, Any] = {"cache": spec.cache, "compile": spec.compile, "downloads": downloads}
        self._text_wish = text if spec.text else None
        self._image_wish = image if spec.image else None
        self._text: FrozenTextEncoder | None = None
        self._image: FrozenImageEncoder | None = None
        self._warned_at = 0  # captions that were cut by then

    @property
    def makes_text(self) -> bool:
        return self._text_wish is not None

    @property
    def makes_image(self) -> bool:
        return self._image_wish is not None

    def check(self, text: bool, image: bool) -> None:
        """Raises UserError for an encoder that could not be opened, as far as that shows without its weights."""
        if text and self._text_wish:
            FrozenTextEncoder.check(self._spec.text or "", self._text_wish.width, downloads=self._downloads)
        if image and self._image_wish:
            wish = self._image_wish
            FrozenImageEncoder.check(self._spec.image or "", wish.width, wish.patch, downloads=self._downloads)

    def text(self) -> FrozenTextEncoder:
        """The encoder of captions. Raises UserError where it cannot be opened."""
        assert self._text_wish is not None, "encoders.text is not named, or nobody wants its features"
        if self._text is None:
            wish, place = self._text_wish, self._spec.text or ""
            self._text = FrozenTextEncoder.open(place, wish.width, wish.length, self._device, self._dtype, **self._how)
        return self._text

    def image(self) -> FrozenImageEncoder:
        """The encoder of images. Raises UserError where it cannot be opened."""
        assert self._image_wish is not None, "encoders.image is not named, or nobody wants its features"
        if self._image is None:
            wish, place = self._image_wish, self._spec.image or ""
            self._image = FrozenImageEncoder.open(place, wish.width, wish.patch, self._device, self._dtype, **self._how)
        return self._image

    def encode_texts(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """`FrozenTextEncoder.encode`, and a word when 1, 10, 100, ... captions have been cut."""
        encoder = self.text()
        made = encoder.encode(texts)
        if encoder.num_truncated >= max(1, 10 * self._warned_at):
            self._warned_at = encoder.num_truncated
            self._warn(
                f"encoders.text={self._spec.text}: captions longer than model.text_length={encoder.length} tokens are "
                f"cut to that ({encoder.num_truncated:,} so far); shorten them, or train with a higher "
                "model.text_length."
            )
        return made

    def encode_images(self, images: Tensor, stored: Tensor) -> Tensor:
        return self.image().encode(images, stored)

    def free_image(self) -> None:
        """Lets the encoder of images go, and the features that it kept. It would be opened again at its next use."""
        self._image = None
