"""Features by encoders, computed while a model trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.spec.encoders import IMAGE, TEXT, Encoders
from ditlab_models.contract import BatchField

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class FeatureExtractor:
    """Encoders of captions and images, each opened at its first use."""

    def __init__(
        self,
        spec: Encoders,
        fields: Sequence[BatchField],
        device: torch.device,
        downloads: Path | None = None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        """Prepare the encoders of a spec, as far as model and loss take their features: `fields`
        are all of both.
        """
        self.spec = spec
        self._warn = warn
        self._downloads = downloads
        self._options: dict[str, Any] = {
            "device": device,
            "dtype": DTYPES[spec.precision],
            "cache": spec.cache,
            "compile": spec.compile,
            "downloads": downloads,
        }
        self._fields = {field.name: field for field in fields}
        self.has_text = bool(spec.text) and TEXT[0] in self._fields
        """True if an encoder of captions is named, and the model takes its features."""
        self._warned_at = 0  # captions that were cut by the last warning

    def _text(self) -> tuple[str, int]:
        """Return the place of the encoder of captions, and its width."""
        return str(self.spec.text), self._fields[TEXT[0]].shape[-1]

    def _image(self) -> tuple[str, int, int]:
        """Return the place of the encoder of images, its width, and the pixels of a patch's
        side.
        """
        return (
            str(self.spec.image),
            self._fields[IMAGE].shape[-1],
            self._fields["image"].multiple_of,
        )

    def check(self, text: bool, image: bool) -> None:
        """Raise UserError for an encoder that could not be opened, as far as its files without
        weights show.
        """
        if text:
            FrozenTextEncoder.check(*self._text(), downloads=self._downloads)
        if image:
            FrozenImageEncoder.check(*self._image(), downloads=self._downloads)

    @cached_property
    def text(self) -> FrozenTextEncoder:
        """Encoder of captions. Raises UserError where it cannot be opened."""
        place, width = self._text()
        return FrozenTextEncoder(place, width, self._fields[TEXT[0]].at_most or 0, **self._options)

    @cached_property
    def image(self) -> FrozenImageEncoder:
        """Encoder of images. Raises UserError where it cannot be opened."""
        place, width, patch = self._image()
        return FrozenImageEncoder(place, width, patch, **self._options)

    def encode_texts(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Encode captions as `FrozenTextEncoder.encode`, with a warning once 1, 10, 100, ... of
        them have been cut.
        """
        encoder = self.text
        features = encoder.encode(texts)
        if encoder.num_truncated >= max(1, 10 * self._warned_at):
            self._warned_at = encoder.num_truncated
            self._warn(
                f"encoders.text={self.spec.text}: captions longer than "
                f"model.text_length={encoder.length} tokens are cut to that "
                f"({encoder.num_truncated:,} so far); shorten them, or train with a higher "
                "model.text_length."
            )
        return features

    def free_image(self) -> None:
        """Free the encoder of images and its cached features. It is opened again at its next
        use.
        """
        self.__dict__.pop("image", None)
