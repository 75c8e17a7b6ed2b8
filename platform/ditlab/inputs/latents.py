"""Latents in place of pixels: drawn of an autoencoder's posterior for training, and decoded where a sampler draws them.

A model of latents takes them as its field `image`; the store's column `latents` holds their mean and log-variance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.data.stores.manifest import Autoencoder
from ditlab.encoders.autoencoder import FrozenAutoencoder
from ditlab_models.contract import NoiseSource, Samples

DRAW = "latents"
"""Name of the random numbers of the posterior."""


def draw_latents(posterior: Tensor, autoencoder: Autoencoder, noise: NoiseSource) -> Tensor:
    """Draw z = (mean + std eps - shift) scale of posteriors (num, 2 channels, h, w): (num, channels, h, w)."""
    mean, log_variance = posterior.chunk(2, dim=1)
    z = mean + (0.5 * log_variance).exp() * noise.normal(DRAW, mean.shape)
    return (z - autoencoder.shift_factor) * autoencoder.scaling_factor


@dataclass
class DecodingSampler:
    """Sampler of latents (`ditlab_models.contract.Sampler`) whose samples, and frames, are decoded to pictures."""

    _sampler: Any
    _autoencoder: FrozenAutoencoder

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
