"""Features of images: the patch tokens of a frozen vision transformer (DINOv3,
arXiv:2508.10104).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.encoders.cache import FeatureCache, batch_slices, content_keys
from ditlab.encoders.checkpoint import EncoderCheckpoint
from ditlab.errors import UserError

IMAGES_AT_A_TIME = 64
"""Images in one pass on a GPU."""
ARCHITECTURE = "dinov3_vit"
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's red, green and blue in [0, 1], by which the encoder's inputs are
normalised.
"""


class FrozenImageEncoder:
    """Frozen DINOv3 vision transformer."""

    def __init__(
        self,
        place: str,
        width: int | None,
        patch: int | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        cache: int = 0,
        compile: bool = False,
        option: str = "encoders.image",
        downloads: Path | None = None,
    ) -> None:
        """Open the encoder at a folder, or of a name on the Hugging Face hub.

        It has `width` features a patch of `patch` pixels a side (None: any), and keeps the features
        of `cache` images. Raises UserError as `check` does.
        """
        self.network = self.check(place, width, patch, option, downloads).network(dtype, device)
        if compile:
            self.network.compile()
        config: Any = self.network.config
        self.width: int = config.hidden_size
        """Features of a patch."""
        self.patch: int = config.patch_size
        """Pixels of a patch's side."""
        # tokens before those of patches: the class, registers
        self._num_other: int = 1 + config.num_register_tokens
        self._cache = FeatureCache(cache)

    @staticmethod
    def check(
        place: str,
        width: int | None,
        patch: int | None,
        option: str = "encoders.image",
        downloads: Path | None = None,
    ) -> EncoderCheckpoint:
        """Return the checkpoint, whose weights are not read. Raises UserError for one that does not
        fit.
        """
        checkpoint = EncoderCheckpoint.find(place, option, ("weights",), downloads)
        config = checkpoint.config()
        if config.model_type != ARCHITECTURE:
            raise UserError(
                f"{checkpoint.name} is a network of the kind {config.model_type}, and images "
                f"are encoded by {ARCHITECTURE} alone; name a DINOv3 vision transformer."
            )
        if patch is not None and config.patch_size != patch:
            raise UserError(
                f"{checkpoint.name} has patches of {config.patch_size} pixels, and the model's "
                f"have {patch}; set model.patch_size to {config.patch_size} (in an import, "
                f"--patch), or name an encoder with patches of {patch}."
            )
        if width is not None and config.hidden_size != width:
            raise UserError(
                f"{checkpoint.name} gives {config.hidden_size} features a patch, but the loss "
                f"takes {width}; set objective.alignment_width to {config.hidden_size}, or "
                "name an encoder of that hidden size."
            )
        return checkpoint

    def encode(self, images: Tensor, stored: Tensor | None = None) -> Tensor:
        """Encode images (num, 3, H, W) in [-1, 1] to (num, patches, width), row by row, in the
        network's type.

        `stored`: the same images, (num, ...) in the host's memory, from which cache keys are cheap.
        """
        keys: Sequence[bytes | int] = range(len(images))
        if self._cache.entries:
            keys = content_keys(images if stored is None else stored)
        rows = self._cache.rows(keys, lambda places: self._features(images[places]))
        return torch.stack(rows).to(self._device)

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()  # not inference_mode, whose tensors no backward pass may keep
    def _features(self, images: Tensor) -> list[Tensor]:
        """Return (patches, width) of each image."""
        rows: list[Tensor] = []
        for part in batch_slices(len(images), self._device, IMAGES_AT_A_TIME):
            tokens = self.network(
                pixel_values=normalised(images[part].to(self._device))
            ).last_hidden_state
            rows.extend(tokens[:, self._num_other :].unbind())
        return rows


def normalised(images: Tensor) -> Tensor:
    """Map images (num, 3, H, W) from [-1, 1] to [0, 1], then subtract ImageNet's mean and divide by
    its deviation.
    """
    mean, std = (torch.tensor(each, device=images.device).view(3, 1, 1) for each in (MEAN, STD))
    return (images.float() / 2 + 0.5 - mean) / std
