"""Figures of the region family: windows before and after imputation, and kinds of figures by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from denoisers.contract import Samples
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Figure, Heatmap
from denoisers.layers.embedding_figures import time_figure
from denoisers.layers.embeddings import table
from denoisers.processes.gaussian.schedule import linear_schedule
from denoisers.processes.gaussian.spec import LinearBetas
from denoisers.region.forward_pass import forward_pass_figure
from denoisers.region.network_figures import draw_adaln, draw_attention, draw_attention_steps, draw_features
from denoisers.region.noise_figures import draw_denoising, draw_loss_by_time, noise_schedule_figure
from denoisers.region.spec import RegionObjectiveSpec, RegionSpec

MAX_WINDOWS = 4
"""Rows of an imputation figure."""
NUM_FRAMES = 8
"""Steps of a trajectory."""


ONE_PREDICTION = "model.positions=none: one prediction for all masked regions of a window"
"""Remark on `RegionSpec.predicts_one_thing`, for titles."""


def imputation_figure(samples: Samples, model: RegionSpec) -> Figure:
    """Draw a row for each window: measured, masked (regions blank), and imputed, in the same colours."""
    panels = []
    for number in range(min(MAX_WINDOWS, len(samples.values))):
        present = samples.conditions["present"][number].cpu().numpy()
        mask = samples.conditions["mask"][number].cpu().numpy()[present]
        measured = samples.conditions["regions"][number].float().cpu().numpy()[present].T  # (F, regions)
        imputed = samples.values[number].float().cpu().numpy()[present].T
        limits = (float(min(0.0, measured.min())), float(max(measured.max(), 1e-6)))
        visible = np.where(mask[None], np.nan, measured)
        share = f"{mask.sum()} of {len(mask)} regions masked"
        for values, title in ((measured, "measured"), (visible, share), (imputed, "imputed")):
            title = f"window {number + 1}: {title}"
            panels.append(_panel(values, title, limits))
    return Figure(panels, title=ONE_PREDICTION if model.predicts_one_thing else "", columns=3)


def draw_imputation(inputs: FigureInputs) -> Figure:
    """Draw `imputation`: held-out windows with regions masked by chance, imputed by the run's sampler."""
    num = min(MAX_WINDOWS, len(inputs.batch["regions"]))
    conditions = {name: inputs.batch[name][:num] for name in ("regions", "present")}
    return inputs.sampler.show(inputs.sampler.sample(inputs.network, conditions, num, inputs.generator))


def draw_trajectory(inputs: FigureInputs) -> Figure:
    """Draw `trajectory`: the masked regions of a held-out window at several steps of sampling, from noise on."""
    conditions = {name: inputs.batch[name][:1] for name in ("regions", "present")}
    samples = inputs.sampler.sample(inputs.network, conditions, 1, inputs.generator, trajectory=True)
    assert samples.trajectory is not None
    present = samples.conditions["present"][0].cpu().numpy()
    measured = samples.conditions["regions"][0].float().cpu().numpy()[present].T
    limits = (float(min(0.0, measured.min())), float(max(measured.max(), 1e-6)))
    last = len(samples.trajectory) - 1
    shown = sorted({round(number) for number in np.linspace(0, last, NUM_FRAMES)})
    frames = [samples.trajectory[step, 0].float().cpu().numpy()[present].T for step in shown]
    panels = [_panel(values, f"step {step} of {last}", limits) for step, values in zip(shown, frames, strict=True)]
    panels.append(_panel(measured, "measured", limits))
    return Figure(panels, title="A window's masked regions on their way from noise", columns=3)


def positions_figure(spec: RegionSpec) -> Figure:
    """Draw the sinusoids of a window's regions, and the similarity of every two."""
    positions = table(spec.num_regions, spec.width).numpy()
    num, width = positions.shape
    similarity = positions @ positions.T / (width / 2)  # every row's squared norm is width / 2
    extent = (0.0, float(width), float(num), 0.0)
    panels = [
        Heatmap(positions, f"{num} regions x {width}", "dimension", "region", extent, diverging=True, unit="value"),
        Heatmap(similarity, "Similarity of every two regions", "region", "region", unit="cosine"),
    ]
    unused = "" if spec.positions == "sinusoidal" else " (model.positions=none: unused)"
    return Figure(panels, title=f"Where a region is: a sinusoid of its place in the window{unused}")


def figure_makers(objective: RegionObjectiveSpec, model: RegionSpec) -> dict[str, FigureMaker]:
    """Return the makers of a trained network's figures by kind; some need a network that takes noise away."""
    schedule = linear_schedule(objective.noise)
    makers: dict[str, FigureMaker] = {
        "imputation": draw_imputation,
        "attention": partial(draw_attention, schedule=schedule),
        "attention_steps": partial(draw_attention_steps, schedule=schedule),
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
    """Draw the kinds that need no weights: the noise schedule, positions, the sinusoid of t, the forward pass."""
    noise = LinearBetas()
    return {
        "noise_schedule": noise_schedule_figure(linear_schedule(noise)),
        "positions": positions_figure(spec),
        "time_embedding": time_figure(
            spec.time_width, layout="cos_sin", denominator="half", last=float(noise.steps - 1), label="timestep t"
        ),
        "forward_pass": forward_pass_figure(spec),
    }


def _panel(values: np.ndarray, title: str, limits: tuple[float, float]) -> Heatmap:
    """Draw features (F, regions) of a window."""
    extent = (0.0, float(values.shape[1]), float(values.shape[0]), 0.0)
    return Heatmap(values, title, "region", "feature", extent, limits=limits, unit="share of the maximum")
