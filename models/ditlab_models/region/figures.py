"""Figures of the region family: windows before and after imputation, the network's inside, and
noise, by kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ditlab_models.contract import Samples
from ditlab_models.figure_kinds.attention import catch_attention, sequence_attention_figure
from ditlab_models.figure_kinds.embeddings import time_figure
from ditlab_models.figure_kinds.network import modulation_figure, pass_figure, vectors_figure
from ditlab_models.figure_makers import FigureInputs, FigureMaker, FigureMakers
from ditlab_models.figures import Curve, Figure, Heatmap, Lines, Panel, evenly_spaced
from ditlab_models.layers.embeddings import table
from ditlab_models.processes.gaussian import NoiseSchedule, linear_schedule
from ditlab_models.processes.gaussian_figures import noise_schedule_figure
from ditlab_models.processes.specs import LinearBetas
from ditlab_models.region.network import RegionNetwork, evaluate_network, present_or_none
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec
from ditlab_models.tensors import to_numpy

MAX_WINDOWS = 4
"""Rows of an imputation figure."""
NUM_FRAMES = 8
"""Steps of a trajectory."""
ONE_PREDICTION = "model.positions=none: one prediction for all masked regions of a window"
"""Remark on `RegionSpec.predicts_one_thing`, for titles."""
NUM_TIMES = 101
ATTENTION_TITLE = (
    "Attention over the regions of a window, half of them masked (token 0 is the class token)"
)
MASKED = 0.5
"""Share of a window's regions that figures of the network mask."""
MAX_REGIONS = 256
"""Regions whose attention is drawn: maps of 900 would take a gigabyte."""
STRIP_SHARES = (0.1, 0.4, 0.8)
"""Timesteps of a strip, as shares of the last one."""
MOST_TIMES = 3.0
"""The error of x_t grows by orders of magnitude: its curve ends where it is as many times that of
the mean.
"""
NUM_LEVELS = 20
MAX_NOISED_WINDOWS = 32


def figure_makers(objective: RegionObjectiveSpec, model: RegionSpec) -> FigureMakers:
    """Return the makers of a trained network's figures by kind; some need a network that takes
    noise away.
    """
    schedule = linear_schedule(objective.noise)
    makers: dict[str, FigureMaker] = {
        "imputation": draw_imputation,
        "attention": lambda inputs: sequence_attention_figure(
            _attend(inputs, schedule), "region", ATTENTION_TITLE, first=1
        ),
        "adaln": partial(draw_adaln, schedule=schedule),
        "features": draw_features,
        "noise_schedule": lambda inputs: noise_schedule_figure(schedule),
    }
    if model.corruption == "ddpm":
        makers["trajectory"] = draw_trajectory
        makers["denoising"] = partial(draw_denoising, schedule=schedule)
        makers["loss_by_time"] = partial(draw_loss_by_time, schedule=schedule)
    return makers


def static_figures(spec: RegionSpec) -> Mapping[str, Figure]:
    """Draw the kinds that need no weights: the noise schedule, positions, the sinusoid of t, the
    forward pass.
    """
    noise = LinearBetas()
    return {
        "noise_schedule": noise_schedule_figure(linear_schedule(noise)),
        "positions": positions_figure(spec),
        "time_embedding": time_figure(
            spec.time_width,
            layout="cos_sin",
            denominator="half",
            last=float(noise.steps - 1),
            label="timestep t",
        ),
        "forward_pass": forward_pass_figure(spec),
    }


def imputation_figure(samples: Samples, model: RegionSpec) -> Figure:
    """Draw a row for each window: measured, masked (regions blank), and imputed, in the same
    colours.
    """
    panels = []
    for number in range(min(MAX_WINDOWS, len(samples.values))):
        present = samples.conditions["present"][number]
        mask = to_numpy(samples.conditions["mask"][number][present])
        measured, imputed = (
            _features(each[number], present)
            for each in (samples.conditions["regions"], samples.values)
        )
        limits = _limits(measured)
        visible = np.where(mask[None], np.nan, measured)
        share = f"{mask.sum()} of {len(mask)} regions masked"
        for values, title in ((measured, "measured"), (visible, share), (imputed, "imputed")):
            panels.append(_panel(values, f"window {number + 1}: {title}", limits))
    return Figure(panels, title=ONE_PREDICTION if model.predicts_one_thing else "", columns=3)


def draw_imputation(inputs: FigureInputs) -> Figure:
    """Draw `imputation`: held-out windows with regions masked by chance, imputed by the run's
    sampler.
    """
    num = min(MAX_WINDOWS, len(inputs.batch["regions"]))
    conditions = {name: inputs.batch[name][:num] for name in ("regions", "present")}
    return inputs.sampler.show(inputs.samples(conditions, num))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: the masked regions of a held-out window at several steps of sampling, from
    noise on.
    """
    conditions = {name: inputs.batch[name][:1] for name in ("regions", "present")}
    samples = inputs.samples(conditions, 1, trajectory=True)
    assert samples.trajectory is not None
    present = samples.conditions["present"][0]
    last = len(samples.trajectory) - 1
    measured = _features(samples.conditions["regions"][0], present)
    limits = _limits(measured)
    panels = [
        _panel(_features(samples.trajectory[step, 0], present), f"step {step} of {last}", limits)
        for step in evenly_spaced(last, NUM_FRAMES)
    ]
    panels.append(_panel(measured, "measured", limits))
    return Figure(panels, title="A window's masked regions on their way from noise", columns=3)


def positions_figure(spec: RegionSpec) -> Figure:
    """Draw the sinusoids of a window's regions, and the similarity of every two."""
    positions = table(spec.num_regions, spec.width).numpy()
    num, width = positions.shape
    similarity = positions @ positions.T / (width / 2)  # every row's squared norm is width / 2
    extent = (0.0, float(width), float(num), 0.0)
    panels = [
        Heatmap(
            positions,
            f"{num} regions x {width}",
            "dimension",
            "region",
            extent,
            diverging=True,
            unit="value",
        ),
        Heatmap(similarity, "Similarity of every two regions", "region", "region", unit="cosine"),
    ]
    unused = "" if spec.positions == "sinusoidal" else " (model.positions=none: unused)"
    return Figure(panels, title=f"Where a region is: a sinusoid of its place in the window{unused}")


def _features(window: Tensor, present: Tensor) -> np.ndarray:
    """Features (F, regions) of a window's regions (R, F) that are present."""
    return to_numpy(window[present].float()).T


def _limits(measured: np.ndarray) -> tuple[float, float]:
    return (float(min(0.0, measured.min())), float(max(measured.max(), 1e-6)))


def _panel(values: np.ndarray, title: str, limits: tuple[float, float]) -> Heatmap:
    """Draw features (F, regions) of a window."""
    extent = (0.0, float(values.shape[1]), float(values.shape[0]), 0.0)
    return Heatmap(
        values, title, "region", "feature", extent, limits=limits, unit="share of the maximum"
    )


def draw_adaln(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `adaln`: the middle block's modulation before attention over timesteps, and the change
    of every block's.
    """
    network = inputs.trained(RegionNetwork)
    t = torch.linspace(
        0, schedule.num_steps - 1, NUM_TIMES, device=network.head.weight.device
    ).round()
    condition = network.time(t)
    modulations = [block.modulations(condition)[0] for block in network.blocks]
    return modulation_figure(modulations, t, "timestep t")


def draw_features(inputs: FigureInputs) -> Figure:
    """Draw `features`: principal components of the learned vectors of the features of a region."""
    network = inputs.trained(RegionNetwork)
    vectors = to_numpy(network.embedding.weight.float()).T  # (F, D)
    names = [str(number) for number in range(len(vectors) - 1)]
    return vectors_figure(
        vectors, [*names, "access."], "the learned vectors of a region's features"
    )


def _attend(inputs: FigureInputs, schedule: NoiseSchedule) -> list[np.ndarray]:
    """Catch attention over the first regions that are present of a window, half of them masked."""
    network = inputs.trained(RegionNetwork)
    regions, present, mask = _masked(inputs, 1)
    t = torch.zeros(1, dtype=torch.int64, device=regions.device)
    if network.spec.corruption == "ddpm":
        t = t + schedule.num_steps // 4
        regions = torch.where(
            mask[..., None], schedule.noised(regions, inputs.noise_like(regions), t), regions
        )
    window = regions[:, present[0]][:, :MAX_REGIONS]
    mask = mask[:, present[0]][:, :MAX_REGIONS]
    attentions = [block.attention for block in network.blocks]
    return catch_attention(
        attentions, lambda: network(window.to(network.head.weight.dtype), mask, t)
    )


def draw_denoising(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `denoising`: a window whose masked regions hold rising noise, and the network's guess
    from each.
    """
    regions, present, mask = _masked(inputs, 1)
    regions = regions.float()
    noise = inputs.noise_like(regions)
    keep = present[0]
    limits = (0.0, max(float(regions.max()), 1e-6))
    measured = _panel(_features(regions[0], keep), "measured", limits)
    upper: list[Panel] = [measured]
    lower: list[Panel] = [measured]
    for share in STRIP_SHARES:
        step = round(share * (schedule.num_steps - 1))
        x_t, guess = _noise_and_guess(inputs, schedule, step, regions, present, mask, noise)
        error = float((guess - regions)[mask].square().mean())
        upper.append(_panel(_features(x_t[0], keep), f"t = {step}", limits))
        lower.append(_panel(_features(guess[0], keep), f"guess, MSE {error:.3f}", limits))
    title = (
        f"A window with {int(mask.sum())} of {int(keep.sum())} regions noised, and the "
        "network's guess of them"
    )
    return Figure([*upper, *lower], title=title, columns=len(STRIP_SHARES) + 1)


def draw_loss_by_time(inputs: FigureInputs, schedule: NoiseSchedule) -> Figure:
    """Draw `loss_by_time`: the error of masked regions by timestep, beside two guesses that need no
    network.
    """
    regions, present, mask = _masked(inputs, MAX_NOISED_WINDOWS)
    regions = regions.float()
    noise = inputs.noise_like(regions)
    steps = np.unique(np.linspace(0, schedule.num_steps - 1, NUM_LEVELS).round().astype(int))
    mean = regions[present].mean(0)
    errors = []
    for step in steps.tolist():
        x_t, guess = _noise_and_guess(inputs, schedule, step, regions, present, mask, noise)
        squared = torch.stack(
            [
                (each - regions).square().mean(-1) * mask
                for each in (guess, mean, x_t / schedule.alpha_bar(step) ** 0.5)
            ]
        )
        errors.append(squared.sum(2) / mask.sum(1).clamp(min=1))
    losses = to_numpy(torch.stack(errors, 1).double())  # (guesses, levels, windows)
    network, constant, noised = losses.mean(axis=2)
    error = 2 * losses[0].std(axis=1) / len(regions) ** 0.5
    worse = noised > MOST_TIMES * constant
    shown = slice(int(worse.argmax()) + 1) if worse.any() else slice(None)
    curves = [
        Curve(steps, network, "network", error),
        Curve(steps, constant, "each feature's mean"),
        Curve(steps[shown], noised[shown], "x_t / √ᾱ_t, as far as shown"),
    ]
    title = f"Masked regions of {len(regions)} held-out windows"
    lines = Lines(curves, title, "timestep t", "squared error of x_0, per entry", log_y=True)
    return Figure([lines], title="Loss by timestep", columns=1)


def _masked(inputs: FigureInputs, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return windows, their regions that are present, and a mask of half of these."""
    regions = inputs.batch["regions"][:most]
    present = inputs.batch["present"][:most]
    chance = torch.rand(present.shape, generator=inputs.generator, device=inputs.generator.device)
    return regions, present, (chance < MASKED).to(present.device) & present


def _noise_and_guess(
    inputs: FigureInputs,
    schedule: NoiseSchedule,
    step: int,
    regions: Tensor,
    present: Tensor,
    mask: Tensor,
    noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """Noise the masked regions to a timestep, and return the windows so, and with the network's
    guess of them.
    """
    t = torch.full((len(regions),), step, device=regions.device)
    x_t = torch.where(mask[..., None], schedule.noised(regions, noise, t), regions)
    guess = evaluate_network(inputs.network, x_t, mask, t, present_or_none(present), None)
    return x_t, torch.where(mask[..., None], guess, regions)


def forward_pass_figure(spec: RegionSpec) -> Figure:
    """Draw the boxes from a window's features to the predicted ones, and the conditioning by the
    timestep.
    """
    regions = spec.num_regions
    features = spec.num_features
    width = spec.width
    token = "noised, + mask token"
    if spec.corruption == "mask":
        token = "replaced by the mask token"
    positions = []
    if spec.positions == "sinusoidal":
        positions = [("+ sinusoids of position", f"{regions} x {width}")]
    steps = [
        ("Features X of a window", f"{regions} regions x {features}"),
        ("Embedding", f"Linear {features} → {width}"),
        ("Masked regions", token),
        *positions,
        ("+ class token", f"{regions + 1} x {width}"),
        (
            f"{spec.depth} blocks: attention",
            f"h + gate · attention(adaLN(h, c)), {spec.num_heads} heads",
        ),
        (f"{spec.depth} blocks: MLP", f"h + gate · MLP(adaLN(h, c)), hidden {spec.mlp_width}"),
        ("LayerNorm, without the class token", f"{regions} x {width}"),
        ("Head: predicted features", f"Linear {width} → {features}, of masked regions"),
    ]
    conditions = [
        ("Timestep t", "0 .. T - 1"),
        ("Sinusoid", f"{spec.time_width} numbers, cosines first"),
        ("MLP: condition c", f"{spec.time_width} → {width}"),
        ("adaLN-Zero", "shift, scale, gate of each branch"),
    ]
    attention = 4 + len(positions)
    return pass_figure(
        steps, conditions, (attention, attention + 1), "The forward pass of the region network"
    )
