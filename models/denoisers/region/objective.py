"""The region objective: squared error of the features of masked regions.

B batch, R regions, F features, Q masked regions of the window that has most (the others' are filled up).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor, nn

from denoisers.contract import NoiseSource
from denoisers.figure_makers import FigureDrawer
from denoisers.layers.rows import Rows, masked_rows, take_rows
from denoisers.processes.gaussian.schedule import linear_schedule
from denoisers.region.agreement import Agreement
from denoisers.region.figures import FIGURES
from denoisers.region.prediction import ask, one_pass
from denoisers.region.spec import RegionObjectiveSpec, RegionSpec

COMPONENTS = ("masked", "accessibility")
EVALUATION_RATIO = 0.5
"""Mask ratio of held-out metrics, whatever the training's: a run that masks less has it easier, and is not better."""
NUM_QUARTERS = 4
AGREEMENT = ("mse", "r2", "pearson")


class RegionObjective(FigureDrawer):
    """Masks regions, corrupts them, and compares what the network makes of them with what they were."""

    figure_makers = FIGURES

    def __init__(self, spec: RegionObjectiveSpec, model: RegionSpec) -> None:
        self.weights: dict[str, float] = spec.weights.model_dump()
        self.modules: nn.Module | None = None
        self._active = [name for name, weight in self.weights.items() if weight > 0]
        self._spec, self._model = spec, model
        self._schedule = linear_schedule(spec.noise)

    def loss(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """Components with a weight above 0. Draws `mask`, `time` and, under `corruption: ddpm`, `noise`."""
        mask = draw_mask(batch, noise_source, self._spec.mask_ratio)
        t = self._timesteps(noise_source.uniform("time", (len(mask),)))
        rows = masked_rows(mask)
        x_t = self._corrupted(batch["regions"], mask, t, noise_source, "noise")
        prediction = ask(network, x_t, mask, t, padding(batch), rows)
        return errors(prediction, batch, rows, self._active, self._spec.reduction)

    @torch.no_grad()
    def metrics(self, network: nn.Module, batch: Mapping[str, Tensor], noise_source: NoiseSource) -> dict[str, Tensor]:
        """At a mask ratio of 0.5: both components, how far predictions of a window differ, and parts of r, R^2, MSE.

        r, R^2, MSE and `spread` are of predictions in one pass from the regions that are not masked. Under `corruption:
        ddpm` the components are means over quarters of the timesteps, each of which has its `masked_t0` (least noise)
        to `masked_t3` as well; that costs four forward passes more.
        """
        mask = draw_mask(batch, noise_source, EVALUATION_RATIO)
        rows, present, target = masked_rows(mask), padding(batch), batch["regions"]
        x_t, t = one_pass(self._model, self._schedule.num_steps, target, mask, noise_source)
        prediction = ask(network, x_t, mask, t, present, rows)
        if self._model.corruption == "mask":
            found = errors(prediction, batch, rows, COMPONENTS, "masked_mean")
        else:
            found = self._by_quarter(network, batch, mask, rows, noise_source)
        found["spread"] = spread(prediction, rows)
        sums = Agreement.of(take_rows(target, rows.index), prediction, rows.valid).total()
        return found | {f"sum_{name}": value / len(mask) for name, value in asdict(sums).items()}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """The components and `spread` as they are; `mse`, `r2` and `pearson` over all masked entries from sums."""
        sums = {name.removeprefix("sum_"): v for name, v in means.items() if name.startswith("sum_")}
        # float64: R^2 and r are small differences of large sums
        agreement = Agreement(**{name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()})
        found = {name: value for name, value in means.items() if not name.startswith("sum_")}
        return found | {name: float(getattr(agreement, name)()) for name in AGREEMENT}

    def metric_names(self) -> Sequence[str]:
        quarters = [f"masked_t{quarter}" for quarter in range(NUM_QUARTERS)]
        return (*COMPONENTS, *(quarters if self._model.corruption == "ddpm" else ()), "spread", *AGREEMENT)

    def _timesteps(self, uniform: Tensor) -> Tensor:
        num = self._schedule.num_steps
        return (uniform * num).long().clamp(max=num - 1)  # in float32, 0.99999997 times a large number is that number

    def _corrupted(self, x: Tensor, mask: Tensor, t: Tensor, noise_source: NoiseSource, name: str) -> Tensor:
        if self._model.corruption == "mask":
            return x
        noised = self._schedule.noised(x, noise_source.normal(name, x.shape), t)
        return torch.where(mask[..., None], noised, x)

    def _by_quarter(
        self, network: nn.Module, batch: Mapping[str, Tensor], mask: Tensor, rows: Rows, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        quarters = []
        for quarter in range(NUM_QUARTERS):
            uniform = noise_source.uniform(f"time_t{quarter}", (len(mask),))
            t = self._timesteps((quarter + uniform) / NUM_QUARTERS)
            x_t = self._corrupted(batch["regions"], mask, t, noise_source, f"noise_t{quarter}")
            prediction = ask(network, x_t, mask, t, padding(batch), rows)
            quarters.append(errors(prediction, batch, rows, COMPONENTS, "masked_mean"))
        means = {name: torch.stack([found[name] for found in quarters]).mean() for name in COMPONENTS}
        return means | {f"masked_t{quarter}": found["masked"] for quarter, found in enumerate(quarters)}


def draw_mask(batch: Mapping[str, Tensor], noise_source: NoiseSource, ratio: float) -> Tensor:
    """Each region that is present is masked with chance `ratio`, by itself: (B, R) bool. Draws `mask`.

    One draw serves all ratios: what a smaller one masks, a larger one masks too.
    """
    present = batch["present"]
    return (noise_source.uniform("mask", present.shape) < ratio) & present


def padding(batch: Mapping[str, Tensor]) -> Tensor | None:
    """(B, R) bool for the network; None where no window is padded, for which attention has faster kernels."""
    present = batch["present"]
    return None if bool(present.all()) else present


def errors(
    prediction: Tensor, batch: Mapping[str, Tensor], rows: Rows, names: Sequence[str], reduction: str
) -> dict[str, Tensor]:
    """Squared errors of masked regions, a mean over windows each (so that it does not matter how a batch is cut).

    prediction: (B, Q, F). Of a window: `masked_mean` divides by the entries of its masked regions, `zeroed_mean` by all
    its entries. A window without a masked region counts as 0.
    """
    squared = (prediction - take_rows(batch["regions"], rows.index).to(prediction.dtype)).square()
    of_region = {"masked": squared.mean(-1), "accessibility": squared[..., -1]}  # (B, Q)
    num = rows.valid.sum(1) if reduction == "masked_mean" else batch["present"].sum(1)
    return {name: (of_region[name] * rows.valid).sum(1).div(num.clamp(min=1)).mean() for name in names}


def spread(prediction: Tensor, rows: Rows) -> Tensor:
    """How far the predictions of one window's masked regions lie apart: their standard deviation, RMS over features.

    Mean over windows. 0 where all are one and the same, as without positions.
    """
    num = rows.valid.sum(1).clamp(min=1)[:, None]  # (B, 1)
    valid = rows.valid[..., None]
    mean = (prediction * valid).sum(1) / num  # (B, F)
    variance = ((prediction - mean[:, None]).square() * valid).sum(1) / num
    return variance.mean(-1).sqrt().mean()
