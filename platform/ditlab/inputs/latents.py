"""Latents in place of pixels: drawn of an autoencoder's posterior for training, and decoded where a sampler draws them.

A model of latents takes them as its field `image`; the store's column `latents` holds their mean and log-variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.data.splits import DataSplits
from ditlab.data.stores.manifest import Autoencoder
from ditlab.encoders.autoencoder import FrozenAutoencoder, check_installed
from ditlab.errors import UserError
from ditlab.spec.encoders import LATENTS
from ditlab_models.contract import ANY, BatchField, NoiseSource, Samples

DRAW = "latents"
"""Name of the random numbers of the posterior."""


def posterior_field(image: BatchField) -> BatchField:
    """Return the field of the posterior that a model's field `image` is drawn of: twice its channels."""
    channels, height, width = image.shape
    return BatchField(LATENTS, (2 * channels, height, width), "float32", unit="means, then log-variances")


def draw_latents(posterior: Tensor, autoencoder: Autoencoder, noise: NoiseSource) -> Tensor:
    """Draw z = (mean + std eps - shift) scale of posteriors (num, 2 channels, h, w): (num, channels, h, w)."""
    mean, log_variance = posterior.chunk(2, dim=1)
    z = mean + (0.5 * log_variance).exp() * noise.normal(DRAW, mean.shape)
    return (z - autoencoder.shift_factor) * autoencoder.scaling_factor


def check_latents(data: DataSplits, image: BatchField, autoencoder: FrozenAutoencoder) -> None:
    """Raise UserError for data without latents, of another autoencoder, or of other sizes than the model's; and where
    nothing here could decode them."""
    check_installed()
    origin, column = data.train.origin, data.train.columns.get(LATENTS)
    if column is None or column.autoencoder is None:
        raise UserError(
            f"{origin} holds no latents for {autoencoder.name}; run `ditlab data encode STORE --autoencoder "
            f"{autoencoder.place}` and set data.path to the new store, or set encoders.autoencoder to null."
        )
    made = column.autoencoder
    if made.sha256 != autoencoder.sha256:
        raise UserError(
            f"{origin} holds latents of {made.source} (sha256 {made.sha256[:12]}), and {autoencoder.name} has "
            f"{autoencoder.sha256[:12]}; name that one, or run `ditlab data encode STORE --autoencoder "
            f"{autoencoder.place}` on the store that it was made from."
        )
    expected = posterior_field(image).shape
    if tuple(column.shape) != expected:
        channels, height, width = column.shape[0] // 2, *column.shape[1:]
        size = "several sizes" if ANY in (height, width) else f"{height} x {width}"
        remedy = f"set model.channels to {channels} and model.image_size to {height}"
        if height != width or height == ANY:
            remedy = "import the images with --sizes square"
        raise UserError(
            f"{origin} holds latents of {channels} channels and {size}, but the model takes {image.shape[0]} and "
            f"{image.shape[1]} x {image.shape[2]}; {remedy}."
        )


class DecodingSampler:
    """Sampler of latents (`ditlab_models.contract.Sampler`) whose samples, and frames, are decoded to pictures."""

    def __init__(self, sampler: Any, autoencoder: FrozenAutoencoder) -> None:
        self._sampler, self._autoencoder = sampler, autoencoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def sample(
        self,
        network: nn.Module,
        conditions: Mapping[str, Tensor],
        num: int,
        generator: torch.Generator,
        trajectory: bool = False,
        noise: Tensor | None = None,
    ) -> Samples:
        """Draw as the sampler does, `noise` in the shape of latents, and decode: values (num, 3, height, width)."""
        drawn: Samples = self._sampler.sample(network, conditions, num, generator, trajectory, noise)
        frames = drawn.trajectory
        if frames is not None:
            frames = self._decoded(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        return replace(drawn, values=self._decoded(drawn.values), trajectory=frames)

    def _decoded(self, latents: Tensor) -> Tensor:
        return self._autoencoder.decode(latents).to(latents.device)
