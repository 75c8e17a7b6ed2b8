"""Figures of a trained region network: attention over a window's regions, modulation by the timestep, features."""

from __future__ import annotations

import torch
from torch import Tensor

from denoisers.figure_kinds.attention_parts import AttentionParts, catch_attention
from denoisers.figure_kinds.attention_steps import attention_steps_figure
from denoisers.figure_kinds.features import vectors_figure
from denoisers.figure_kinds.modulation import modulation_arrays, modulation_figure
from denoisers.figure_kinds.sequence_attention import sequence_attention_figure
from denoisers.figure_makers import FigureInputs
from denoisers.figures import Figure
from denoisers.processes.gaussian.schedule import NoiseSchedule
from denoisers.region.network import RegionNetwork

NUM_TIMES = 101
MASKED = 0.5
MAX_REGIONS = 256
"""Regions whose attention is drawn: maps of 900 would take a gigabyte."""


def draw_attention(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `attention`: maps by layer and head over a window half of whose regions are masked. Token 0 is the class."""
    layers = _attend(inputs, schedule)
    title = "Attention over the regions of a window, half of them masked (token 0 is the class token)"
    return sequence_attention_figure(layers, "region", title, first=1)


def draw_attention_steps(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `attention_steps`: one head of the middle layer from its input to its output."""
    layers = _attend(inputs, schedule)
    middle = len(layers) // 2
    return attention_steps_figure(layers[middle], f"layer {middle + 1} of {len(layers)}")


def draw_adaln(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention over timesteps, and the change of every block's."""
    network = inputs.network
    assert isinstance(network, RegionNetwork)
    t = torch.linspace(0, schedule.num_steps - 1, NUM_TIMES, device=network.head.weight.device).round()
    condition = network.time(t)
    blocks = [modulation_arrays(block.modulations(condition)[0]) for block in network.transformer_blocks()]
    return modulation_figure(blocks, t.cpu().numpy(), "timestep t")


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the learned vectors of the features of a region."""
    network = inputs.network
    assert isinstance(network, RegionNetwork)
    vectors = network.embedding.weight.detach().float().cpu().numpy().T  # (F, D)
    names = [str(number) for number in range(len(vectors) - 1)]
    return vectors_figure(vectors, [*names, "access."], "the learned vectors of a region's features")


def _attend(inputs: FigureInputs, schedule: NoiseSchedule) -> list[AttentionParts]:
    network = inputs.network
    assert isinstance(network, RegionNetwork)
    regions, present = inputs.batch["regions"][:1], inputs.batch["present"][:1]
    generator, device = inputs.generator, inputs.generator.device
    mask = (torch.rand(present.shape, generator=generator, device=device) < MASKED).to(present.device) & present
    t = 0
    if network.spec.corruption == "ddpm":
        t = schedule.num_steps // 4
        noise = torch.randn(regions.shape, generator=generator, device=device).to(regions)
        times = torch.full((1,), t, device=regions.device)
        regions = torch.where(mask[..., None], schedule.noised(regions, noise, times), regions)
    times = torch.full((1,), t, dtype=torch.int64, device=regions.device)
    window = _present(regions, present)
    attentions = [block.attention for block in network.transformer_blocks()]
    dtype = network.head.weight.dtype
    with torch.no_grad():
        return catch_attention(attentions, lambda: network(window.to(dtype), _present(mask, present), times))


def _present(values: Tensor, present: Tensor) -> Tensor:
    """Keep the first regions of a window that are present: (1, R, ...) -> (1, at most 256, ...)."""
    return values[:, present[0]][:, :MAX_REGIONS]
