"""Figures of PixelHDM by kind: samples of held-out captions, trajectories, attention gates, frequency weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import Samples
from denoisers.figure_kinds.flow_schedule import flow_schedule_figure
from denoisers.figure_kinds.flow_times import denoising_figure, loss_by_time_figure
from denoisers.figure_kinds.receptive_field import receptive_field_figure
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Figure, Heatmap
from denoisers.layers.embedding_figures import time_figure
from denoisers.layers.gated_attention import GatedAttention
from denoisers.layers.sandwich_block import SandwichBlock
from denoisers.pixelhdm.figure_parts.attention_figures import draw_attention, draw_attention_steps
from denoisers.pixelhdm.figure_parts.forward_pass import forward_pass_figure
from denoisers.pixelhdm.figure_parts.guidance_figure import guidance_figure
from denoisers.pixelhdm.figure_parts.path_figures import draw_adaln, draw_features, draw_paths
from denoisers.pixelhdm.figure_parts.probe import velocity_probe
from denoisers.pixelhdm.figure_parts.token_figures import draw_patches, positions_figure
from denoisers.pixelhdm.network import TIME_SCALE, PixelHDM
from denoisers.pixelhdm.pixel_path import PixelBlock
from denoisers.pixelhdm.sampling import PixelHDMSampler
from denoisers.pixelhdm.spec import PixelHDMObjectiveSpec, PixelHDMSamplingSpec, PixelHDMSpec
from denoisers.processes.flow.figures import trajectory_figure
from denoisers.processes.flow.frequency_loss import frequency_weights, quantisation_tables
from denoisers.processes.flow.linear_path import interpolate

NUM_SAMPLES = 16
NUM_TRAJECTORIES = 4
GATE_TIMES = (0.1, 0.5, 0.9)
"""Mostly noise, half noise, hardly any noise."""
NUM_GATED = 8
"""Most images over which gates are averaged."""


def draw_samples(inputs: FigureInputs) -> Figure:
    """Draw `samples`: one for each of the batch's first captions, at the sampler's size."""
    return inputs.sampler.show(_draw(inputs, NUM_SAMPLES))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: a few samples at several times from noise to image, and at all times as an animation."""
    samples = _draw(inputs, NUM_TRAJECTORIES, trajectory=True)
    assert samples.trajectory is not None and isinstance(inputs.sampler, PixelHDMSampler)
    times = inputs.sampler.times().tolist()
    projected = [1.0] if inputs.sampler.spec.final_projection else []
    return trajectory_figure(samples.trajectory, [*times, *projected])


def draw_attention_gates(inputs: FigureInputs) -> Figure:
    """Draw `attention_gates`: the mean gate of each head in every block of both paths, at three times.

    Means over the patches of the batch's first images, noised; text is left out.
    """
    network = inputs.network
    assert isinstance(network, PixelHDM)
    paths = {
        "Patch path": [block.attention for block in cast("list[SandwichBlock]", list(network.patch_blocks))],
        "Pixel path": [block.compaction.attention for block in cast("list[PixelBlock]", list(network.pixel_blocks))],
    }
    batch = {name: values[:NUM_GATED] for name, values in inputs.batch.items()}
    image = batch["image"]
    noise = torch.randn(image.shape, generator=inputs.generator, device=inputs.generator.device).to(image)
    by_time = [_mean_gates(network, list(paths.values()), batch, noise, time) for time in GATE_TIMES]
    panels = [
        _gates_panel(by_time[number][path], f"{name}, t = {time:g}")
        for path, name in enumerate(paths)
        for number, time in enumerate(GATE_TIMES)
    ]
    return Figure(panels, title="How open attention's gates are (0.5 before training)", columns=len(GATE_TIMES))


def _gates_panel(gates: np.ndarray, title: str) -> Heatmap:
    blocks, heads = ([str(number + 1) for number in range(size)] for size in gates.shape)
    return Heatmap(gates, title, "head", "block", limits=(0.0, 1.0), x_names=heads, y_names=blocks, unit="mean gate")


def draw_frequency_weights(_inputs: FigureInputs, quality: int) -> Figure:
    """Draw `frequency_weights`, which depend on the quality alone, not on training."""
    return frequency_weights_figure(quality)


def frequency_weights_figure(quality: int) -> Figure:
    """Draw JPEG's quantisation steps, and the frequency loss's weights of coefficients' errors."""
    steps, weights = quantisation_tables(quality), frequency_weights(quality).values.numpy()
    axes = ("horizontal frequency", "vertical frequency")
    largest_step = float(max(table.max() for table in steps))
    panels = [
        Heatmap(table.numpy(), f"Quantisation steps of {name}", *axes, limits=(1.0, largest_step), unit="step")
        for name, table in (("Y", steps.luma), ("Cb and Cr", steps.chroma))
    ]
    panels += [
        Heatmap(
            table, f"Weights of errors in {name} (mean 1)", *axes, limits=(0.0, float(weights.max())), unit="weight"
        )
        for name, table in (("Y", weights[0]), ("Cb and Cr", weights[1]))
    ]
    return Figure(panels, title=f"The frequency loss at JPEG quality {quality}")


def figure_makers(objective: PixelHDMObjectiveSpec) -> dict[str, FigureMaker]:
    """Return the makers of a trained network's figures by kind."""
    return {
        "samples": draw_samples,
        "trajectory": draw_trajectory,
        "denoising": lambda inputs: denoising_figure(velocity_probe(inputs, objective)),
        "loss_by_time": lambda inputs: loss_by_time_figure(velocity_probe(inputs, objective)),
        "receptive_field": lambda inputs: receptive_field_figure(velocity_probe(inputs, objective, NUM_GATED)),
        "patches": draw_patches,
        "attention": draw_attention,
        "attention_steps": draw_attention_steps,
        "attention_gates": draw_attention_gates,
        "adaln": draw_adaln,
        "features": draw_features,
        "paths": partial(draw_paths, objective=objective),
        "noise_schedule": lambda inputs: flow_schedule_figure(objective.time, noise_at=0),
        "guidance": draw_guidance,
        "frequency_weights": partial(draw_frequency_weights, quality=objective.frequency.quality),
    }


def draw_guidance(inputs: FigureInputs) -> Figure:
    """Draw `guidance`: the scale over time by schedule, under the run's settings of sampling."""
    assert isinstance(inputs.sampler, PixelHDMSampler)
    return guidance_figure(inputs.sampler.spec)


def static_figures(spec: PixelHDMSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: noise, guidance, positions, time, frequency weights, the forward pass."""
    objective = PixelHDMObjectiveSpec()
    figures = {
        "noise_schedule": flow_schedule_figure(objective.time, noise_at=0),
        "guidance": guidance_figure(PixelHDMSamplingSpec()),
        "time_embedding": time_figure(spec.time_width, TIME_SCALE, denominator="half"),
        "frequency_weights": frequency_weights_figure(objective.frequency.quality),
        "forward_pass": forward_pass_figure(spec),
    }
    return figures if spec.positions == "learned" else {**figures, "positions": positions_figure(spec)}


def _draw(inputs: FigureInputs, most: int, trajectory: bool = False) -> Samples:
    """Draw samples of the batch's first captions: at most `most`, and no more than one batch of the sampler."""
    sampler = inputs.sampler
    assert isinstance(sampler, PixelHDMSampler)
    num = min(most, len(inputs.batch["image"]), sampler.max_batch_size or most)
    conditions = {name: inputs.batch[name][:num] for name in sampler.row_fields}
    if "caption" in conditions:
        conditions["prompt"] = conditions["caption"]
    conditions["size"] = torch.tensor([sampler.size]).expand(num, 2)
    return sampler.sample(inputs.network, conditions, num, inputs.generator, trajectory)


def _mean_gates(
    network: PixelHDM, paths: list[list[GatedAttention]], batch: Mapping[str, Tensor], noise: Tensor, time: float
) -> list[np.ndarray]:
    """Mean gates (blocks, heads) of every path in a forward pass at one time."""
    num_patches = noise[0, 0].numel() // network.spec.patch_size**2
    means: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, GatedAttention)
        gates = module.gates(args[0][:, -num_patches:])  # text, where there is any, stands first
        means[module] = gates.float().mean((0, 1, 3))

    handles = [attention.register_forward_pre_hook(keep) for path in paths for attention in path]
    try:
        t = torch.full((len(noise),), time, device=noise.device)
        network(interpolate(batch["image"], noise, t, noise_at=0), t, batch)
    finally:
        for handle in handles:
            handle.remove()
    return [torch.stack([means[attention] for attention in path]).cpu().numpy() for path in paths]
