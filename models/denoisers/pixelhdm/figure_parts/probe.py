"""A trained PixelHDM as a velocity, and what its blocks pass on, for figures.

B batch, N patches, M pixels of a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from denoisers.figure_kinds.flow_times import FlowProbe
from denoisers.figure_kinds.module_outputs import module_outputs
from denoisers.figure_makers import FigureInputs
from denoisers.pixelhdm.network import PixelHDM
from denoisers.pixelhdm.spec import PixelHDMObjectiveSpec
from denoisers.processes.flow.linear_path import interpolate, point_velocity

MAX_IMAGES = 16


@dataclass(frozen=True)
class NoisedImages:
    """Images at one share of noise, with their texts."""

    z_t: Tensor
    """(B, 3, H, W)."""
    t: Tensor
    """(B,)."""
    condition: Mapping[str, Tensor]


def trained_network(inputs: FigureInputs) -> PixelHDM:
    """Return the network with its own type."""
    network = inputs.network
    assert isinstance(network, PixelHDM)
    return network


def velocity_probe(inputs: FigureInputs, objective: PixelHDMObjectiveSpec, most: int = MAX_IMAGES) -> FlowProbe:
    """Return the network's velocity and noise for the batch's first images, under their own captions."""
    network = trained_network(inputs)
    image = inputs.batch["image"][:most]
    noise = torch.randn(image.shape, generator=inputs.generator, device=inputs.generator.device).to(image)
    condition = {name: values[:most] for name, values in inputs.batch.items()}

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        output = network(x, t, condition)
        assert isinstance(output, Tensor)
        output = output.to(x)
        if objective.prediction == "velocity":
            return output
        return point_velocity(x, t.view(-1, 1, 1, 1), output, noise_at=0)

    return FlowProbe(velocity, image, noise, noise_at=0)


def noise_images(inputs: FigureInputs, share: float, most: int) -> NoisedImages:
    """Noise the batch's first images by a share."""
    image = inputs.batch["image"][:most]
    noise = torch.randn(image.shape, generator=inputs.generator, device=inputs.generator.device).to(image)
    t = torch.full((len(image),), 1 - share, device=image.device)
    condition = {name: values[:most] for name, values in inputs.batch.items()}
    return NoisedImages(interpolate(image, noise, t, noise_at=0), t, condition)


def block_outputs(network: PixelHDM, blocks: list[nn.Module], noised: NoisedImages) -> list[Tensor]:
    """Return the outputs of blocks in one forward pass, in the blocks' order."""
    return module_outputs(blocks, lambda: network(noised.z_t, noised.t, noised.condition))
