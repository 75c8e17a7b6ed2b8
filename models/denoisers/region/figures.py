"""Figures of the region family: windows before and after imputation, and the noise schedule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from denoisers.contract import Samples
from denoisers.figure_makers import FigureInputs, FigureMaker
from denoisers.figures import Curve, Figure, Heatmap, Lines
from denoisers.processes.gaussian.schedule import linear_schedule
from denoisers.processes.gaussian.spec import LinearBetas
from denoisers.region.spec import RegionSpec

MAX_WINDOWS = 4
"""Rows of an imputation figure."""


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
            extent = (0.0, float(values.shape[1]), float(values.shape[0]), 0.0)
            panels.append(Heatmap(values, title, "region", "feature", extent, limits=limits))
    return Figure(panels, title=ONE_PREDICTION if model.predicts_one_thing else "", columns=3)


def draw_imputation(inputs: FigureInputs) -> Figure:
    """Draw `imputation`: held-out windows with regions masked by chance, imputed by the run's sampler."""
    num = min(MAX_WINDOWS, len(inputs.batch["regions"]))
    conditions = {name: inputs.batch[name][:num] for name in ("regions", "present")}
    return inputs.sampler.show(inputs.sampler.sample(inputs.network, conditions, num, inputs.generator))


FIGURES: dict[str, FigureMaker] = {"imputation": draw_imputation}


def static_figures() -> Mapping[str, Figure]:
    """Draw `noise_schedule`: the remaining signal of a masked region by timestep, under the default schedule."""
    schedule = linear_schedule(LinearBetas())
    t = np.arange(schedule.num_steps)
    curves = [
        Curve(t, schedule.alphas_cumprod.numpy(), "signal's share of variance, alpha_bar"),
        Curve(t, (1 - schedule.alphas_cumprod).numpy(), "noise's share"),
    ]
    half = int((schedule.alphas_cumprod < 0.5).nonzero()[0])
    title = f"As much noise as signal from t = {half} on"
    betas = Lines([Curve(t, schedule.betas.numpy())], "Share of variance replaced at t, beta", "timestep t", "beta_t")
    return {"noise_schedule": Figure([Lines(curves, title, "timestep t", "share"), betas], title="Noise by timestep")}
