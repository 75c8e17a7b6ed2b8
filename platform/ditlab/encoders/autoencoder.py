"""Latents of images: the posterior of a frozen AutoencoderKL (Rombach et al. 2022,
arXiv:2112.10752), and its decoder.

The one file that imports diffusers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ditlab.encoders.cache import batch_slices
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.weights.files import WeightFiles

ARCHITECTURE = "AutoencoderKL"
SAFE = ".safetensors"
IMAGES_AT_A_TIME = 8
"""Images in one pass on a GPU: a decoder's features have the size of its pixels."""


class FrozenAutoencoder:
    """AutoencoderKL as diffusers saves it, in float32. Nothing is read before it is used."""

    def __init__(
        self,
        place: str,
        device: torch.device | str = "cpu",
        option: str = "encoders.autoencoder",
        home: Home | None = None,
    ) -> None:
        """Name the one at a folder, or of the hub as hf://OWNER/NAME@REVISION, which is fetched
        below `home` (None: DITLAB_HOME). `option` is the setting that holds `place`."""
        self.place = place
        self.device = torch.device(device)
        self.name = f"{option}={place}"
        self._option = option
        self._home = home

    @cached_property
    def files(self) -> WeightFiles:
        """Its weights. Raises UserError for a place without an AutoencoderKL in safetensors."""
        files = WeightFiles.find(self.place, self._option, self._home or Home.from_environment())
        kind = files.config.get("_class_name", "no model")
        found = ""
        if kind != ARCHITECTURE:
            found = f"its config.json names {kind}"
        elif any(path.suffix != SAFE for path in files.paths):
            found = f"its weights are no *{SAFE}"
        if found:
            raise UserError(
                f"{self.name} holds no {ARCHITECTURE} ({found}); name a folder that its "
                "save_pretrained wrote."
            )
        if files.config.get("latents_mean") is not None:
            raise UserError(
                f"{self.name} normalises latents by latents_mean and latents_std, and one "
                "scaling factor is supported; name an autoencoder without them."
            )
        return files

    @property
    def sha256(self) -> str:
        """SHA-256 of its weights."""
        return self.files.sha256

    @property
    def channels(self) -> int:
        """Channels of latents."""
        return int(self.files.config.get("latent_channels", 4))

    @property
    def pixels(self) -> int:
        """Pixels of an image's side by those of its latents: each resolution but the last halves
        it.
        """
        return int(2 ** (len(self.files.config.get("block_out_channels", (64,))) - 1))

    @property
    def scaling_factor(self) -> float:
        """Factor of latents that a model is trained on, which brings them to a standard deviation
        of about 1.
        """
        return float(self.files.config.get("scaling_factor") or 1.0)

    @property
    def shift_factor(self) -> float:
        """Number that is taken off latents before they are scaled."""
        return float(self.files.config.get("shift_factor") or 0.0)

    @cached_property
    def network(self) -> Any:
        """The frozen network, in evaluation mode, on the device. Raises UserError for damaged
        weights.
        """
        folder = self.files.folder
        kind = library()
        try:
            network, loaded = kind.from_pretrained(
                folder,
                torch_dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                low_cpu_mem_usage=False,
                output_loading_info=True,
            )
        # a wrong type in a configuration raises whatever the constructor raises
        except Exception as error:
            raise UserError(
                f"{self.name} cannot be read by diffusers ({first_line(error)}); name a folder "
                "that its save_pretrained wrote."
            ) from error
        missing = sorted(loaded["missing_keys"])
        if missing:
            raise UserError(
                f"{self.name} lacks weights of its network ({missing[0]}, {len(missing)} in "
                "all); name the folder of a whole autoencoder."
            )
        return network.requires_grad_(False).eval().to(self.device)

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Encode images (num, 3, H, W) in [-1, 1] to the mean of their posterior, then its
        log-variance, clamped to [-30, 20]: (num, 2 channels, H / pixels, W / pixels), neither
        shifted nor scaled."""
        found = []
        for part in batch_slices(len(images), self.device, IMAGES_AT_A_TIME):
            with float32_convolutions():
                posterior = self.network.encode(images[part].to(self.device)).latent_dist
            found.append(torch.cat((posterior.mean, posterior.logvar), dim=1))
        return torch.cat(found)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode latents as a model is trained on them, (num, channels, h, w), to images (num, 3,
        H, W) about [-1, 1], float32."""
        latents = latents.float() / self.scaling_factor + self.shift_factor
        parts = batch_slices(len(latents), self.device, IMAGES_AT_A_TIME)
        with float32_convolutions():
            return torch.cat(
                [self.network.decode(latents[part].to(self.device)).sample for part in parts]
            )


def float32_convolutions() -> AbstractContextManager[None]:
    """Convolutions in float32, not TensorFloat-32, whose results are a thousandth off those of a
    CPU; else as set.
    """
    cudnn = torch.backends.cudnn
    return cudnn.flags(
        cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, allow_tf32=False
    )


def check_installed() -> None:
    """Raise UserError where diffusers is not installed; it is not imported."""
    if find_spec("diffusers") is None:
        raise UserError(
            "autoencoders need the library diffusers, which is not installed; `pip install "
            "'ditlab[hub]'` brings it."
        )


def library() -> Any:
    """Import diffusers' AutoencoderKL. Raises UserError as `check_installed` does."""
    check_installed()
    from diffusers import AutoencoderKL

    return AutoencoderKL
