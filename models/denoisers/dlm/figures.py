"""Figures of the language model: its kinds by name, its loss by noise, and samples of text, for reading."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from denoisers.contract import Samples, TextCodec
from denoisers.dlm.figure_parts.forward_pass import forward_pass_figure
from denoisers.dlm.figure_parts.network_figures import (
    attention_mask_figure,
    draw_adaln,
    draw_attention,
    draw_attention_steps,
    draw_features,
)
from denoisers.dlm.figure_parts.token_figures import (
    draw_denoising,
    draw_samples,
    draw_trajectory,
    noise_schedule_figure,
)
from denoisers.dlm.noising import TokenNoise
from denoisers.dlm.spec import DLMObjectiveSpec, DLMSpec
from denoisers.figure_kinds.rotary import rotary_figure
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Curve, Figure, Lines, Text
from denoisers.layers.embedding_figures import time_figure
from denoisers.processes.discrete.schedule import sigma_schedule
from denoisers.processes.discrete.score_entropy import expected_zero_score_entropy

NUM_LEVELS = 16
ROUNDS = 2
"""Draws of each sequence at each level."""
EXCERPT = 1200
"""Characters shown of a frame: about twelve lines, so that eight frames fit a panel."""


def draw_loss_by_noise(inputs: FigureInputs, noise: TokenNoise) -> Figure:
    """Draw `loss_by_noise`: the batch's loss times d sigma/dt by t, and unweighted by sigma, beside log scores of 0.

    A curve's area in the first panel is the integral in the bound, in nats a token. Bands are two standard errors over
    sequences. Each level is the middle of an equal part of t. Sigma has a logarithmic axis, as most schedules spend
    most of t near 0.
    """
    x0 = inputs.batch["tokens"]
    t = (torch.arange(NUM_LEVELS, dtype=torch.float32, device=x0.device) + 0.5) / NUM_LEVELS
    by_level = []  # losses of sequences, at each level
    for time in t:
        levels = noise.at_time(time.expand(noise.time_shape(x0)))
        rounds = []
        for _ in range(ROUNDS):
            move, jump = torch.rand(2, *x0.shape, generator=inputs.generator, device=x0.device)
            rounds.append(noise.losses(inputs.network, x0, levels, move, jump).per_token.mean(1))
        by_level.append(torch.cat(rounds).double())
    losses = torch.stack(by_level)  # (levels, sequences)
    sigma, rate = noise.schedule.sigma(t).double(), noise.schedule.rate(t).double()
    mean, error = losses.mean(1), 2 * losses.std(1) / losses.shape[1] ** 0.5
    flat = expected_zero_score_entropy(sigma, noise.vocabulary)
    panels = []
    for times, x, title, x_label, y_label in (
        (rate, t, "Loss times d sigma/dt, by time", "t", "nats a token per unit of t"),
        (torch.ones_like(rate), sigma, "Loss, by noise", "sigma (log scale)", "nats a token per unit of sigma"),
    ):
        abscissa, y, band, zero = (each.cpu().numpy() for each in (x, times * mean, times * error, times * flat))
        curves = [Curve(abscissa, y, "network", band), Curve(abscissa, zero, "all log scores 0")]
        panels.append(Lines(curves, title, x_label, y_label, log_x=x is sigma))
    area, zero_area = (float((rate * each).mean()) for each in (mean, flat))
    title = f"Where the loss sits (areas in nats a token: network {area:.3f}, all log scores 0 {zero_area:.3f})"
    return Figure(panels, title=title)


def figure_makers(noise: TokenNoise, name: str, text: TextCodec | None) -> dict[str, FigureMaker]:
    """Return the makers of a trained network's figures by kind; `name` is that of the noise schedule."""
    return {
        "samples": draw_samples,
        "trajectory": partial(draw_trajectory, text=text),
        "denoising": partial(draw_denoising, noise=noise, text=text),
        "loss_by_noise": partial(draw_loss_by_noise, noise=noise),
        "noise_schedule": lambda inputs: noise_schedule_figure(noise.schedule, noise.vocabulary, name),
        "attention": partial(draw_attention, noise=noise),
        "attention_steps": partial(draw_attention_steps, noise=noise),
        "adaln": partial(draw_adaln, noise=noise),
        "features": partial(draw_features, text=text),
    }


def static_figures(spec: DLMSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: noise schedule, rotary positions, the sinusoid of noise, forward pass, and
    the attention mask of a block-causal network."""
    noise = DLMObjectiveSpec().noise
    figures = {
        "noise_schedule": noise_schedule_figure(sigma_schedule(noise), spec.vocabulary, noise.kind),
        "positions": rotary_figure(spec.head_width, spec.length),
        "time_embedding": time_figure(
            spec.time_width, layout="cos_sin", denominator="half", last=noise.sigma_max, label="noise sigma"
        ),
        "forward_pass": forward_pass_figure(spec),
    }
    return figures if spec.block_size is None else {**figures, "attention_mask": attention_mask_figure(spec)}


def sample_figure(samples: Samples, text: TextCodec | None, in_blocks: bool) -> Figure:
    """Show all samples, and the first one's `frames` (see `Frames.fields`) if there are any; token ids without `text`.

    Frames `in_blocks` leave out later blocks; long ones show their end, other long frames their beginning.
    """
    panels = [Text([_read(tokens, text) for tokens in samples.values], title="Samples")]
    if "frames" in samples.fields:
        frames = zip(*(samples.fields[name] for name in ("frames", "noise", "written")), strict=True)
        passages = []
        for tokens, noise, written in frames:
            passage = _read(tokens[: int(written)], text)
            if len(passage) > EXCERPT:
                passage = f"... {passage[-EXCERPT:]}" if in_blocks else f"{passage[:EXCERPT]} ..."
            passages.append(f"[sigma {float(noise):.3g}] {passage}")
        panels.append(Text(passages, title="How noise becomes the first sample"))
    return Figure(panels, columns=1)


def _read(tokens: Tensor, text: TextCodec | None) -> str:
    ids = tokens.tolist()
    return " ".join(map(str, ids)) if text is None else text.decode(ids)
