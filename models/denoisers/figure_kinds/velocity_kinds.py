"""Figure makers that both velocity networks of square images have: `network(x, t[, label])`, noise at t = 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from denoisers.contract import TimeDensity
from denoisers.figure_kinds.features import token_features_figure
from denoisers.figure_kinds.flow_schedule import flow_schedule_figure
from denoisers.figure_kinds.flow_times import MAX_IMAGES, FlowProbe, denoising_figure, loss_by_time_figure
from denoisers.figure_kinds.module_outputs import module_outputs
from denoisers.figure_kinds.receptive_field import receptive_field_figure
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Figure
from denoisers.processes.flow.figures import draw_samples, draw_trajectory, to_pictures
from denoisers.processes.flow.linear_path import interpolate

FEATURES_TIME = 0.25
"""Time t, the share of noise, of the images whose features are drawn."""


def velocity_makers(time: TimeDensity) -> Mapping[str, FigureMaker]:
    """Return makers by kind; `time` is the density of the run's training times."""

    def draw_noise_schedule(_inputs: FigureInputs) -> Figure:
        return flow_schedule_figure(time)

    return {
        "samples": draw_samples,
        "trajectory": draw_trajectory,
        "denoising": draw_denoising,
        "loss_by_time": draw_loss_by_time,
        "receptive_field": draw_receptive_field,
        "noise_schedule": draw_noise_schedule,
    }


def draw_denoising(inputs: FigureInputs) -> Figure:
    """Draw `denoising`: held-out images at rising noise, and the network's guess from each in one step."""
    return denoising_figure(velocity_probe(inputs))


def draw_loss_by_time(inputs: FigureInputs) -> Figure:
    """Draw `loss_by_time`: the velocity's error on held-out images by time, beside guesses that need no network."""
    return loss_by_time_figure(velocity_probe(inputs))


def draw_receptive_field(inputs: FigureInputs) -> Figure:
    """Draw `receptive_field`: the input pixels on which the velocity of the centre depends."""
    return receptive_field_figure(velocity_probe(inputs))


def draw_features_of(
    inputs: FigureInputs, module: nn.Module, to_tokens: Callable[[Tensor], tuple[Tensor, int, int]], where: str
) -> Figure:
    """Draw the principal components of what a module of the network puts out, for images at `FEATURES_TIME`.

    `to_tokens` turns the output into tokens (B, rows * columns, D), rows and columns; `where` names the module.
    """
    probe = velocity_probe(inputs)
    t = probe.at(FEATURES_TIME)
    x_t = interpolate(probe.image, probe.noise, t)
    (output,) = module_outputs([module], lambda: probe.velocity(x_t, t))
    tokens, rows, columns = to_tokens(output)
    labels = [str(value) for value in inputs.batch["label"][: len(x_t)].tolist()] if "label" in inputs.batch else []
    place = f"{where}, t = {FEATURES_TIME:g}"
    return token_features_figure(tokens.float().cpu().numpy(), rows, columns, to_pictures(x_t), labels, place)


def velocity_probe(inputs: FigureInputs) -> FlowProbe:
    """Return the network's velocity and noise for the batch's first images, under their own classes."""
    network = inputs.network
    image = inputs.batch["image"][:MAX_IMAGES]
    noise = torch.randn(image.shape, generator=inputs.generator, device=inputs.generator.device).to(image)
    label = inputs.batch["label"][:MAX_IMAGES] if getattr(network, "label", None) is not None else None
    dtype = next(network.parameters()).dtype

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        predicted: Tensor = network(x.to(dtype), t.to(dtype), label)
        return predicted.to(x)

    return FlowProbe(velocity, image, noise)
