"""The region objective: squared error of the features of masked regions.

B batch, R regions, F features, Q masked regions of the window that has most (those of others are
padded).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ditlab_models.contract import Batch, NoiseSource
from ditlab_models.figure_makers import FigureDrawer
from ditlab_models.processes.analytic_targets import GaussianMixture
from ditlab_models.processes.draws import draw_times, mean_over_quarters, quarter_mean
from ditlab_models.processes.gaussian import linear_schedule
from ditlab_models.processes.specs import quarter_names
from ditlab_models.region.figures import figure_makers
from ditlab_models.region.network import evaluate_network, one_step_inputs, present_or_none
from ditlab_models.region.spec import Reduction, RegionObjectiveSpec, RegionSpec
from ditlab_models.tensors import Rows, masked_rows, take_rows, to_numpy

COMPONENTS = ("masked", "accessibility")
EVALUATION_RATIO = 0.5
"""Mask ratio of held-out metrics, whatever the training's: a lower one makes the task easier, not
the model better.
"""
AGREEMENT = ("mse", "r2", "pearson")
ENTRIES = "entries"
"""Name of the number of masked regions, by which `entry_mean` divides."""
TINY = 1e-12
"""Largest sum of squares that counts as 0: rounding of sums of numbers near 1."""


class RegionObjective(FigureDrawer):
    """Squared error of the network's prediction of regions that are masked and corrupted."""

    prepared_from = ("present",)

    def __init__(self, spec: RegionObjectiveSpec, model: RegionSpec) -> None:
        self.figure_makers = figure_makers(spec, model)
        self.weights = spec.weights.model_dump()
        self._spec = spec
        self._model = model
        self._schedule = linear_schedule(spec.noise)
        self.counted = (ENTRIES,) if spec.reduction == "entry_mean" else ()

    def loss(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute the components with a weight above 0. Draws `mask`, `time` and, under
        `corruption: ddpm`, `noise`.

        `mask` is not drawn of a batch that holds what `prepare` returns.
        """
        prepared = batch if "mask" in batch else self.prepare(batch, noise_source)
        mask = prepared["mask"]
        rows = Rows(prepared["query_index"], prepared["query_valid"])
        time = noise_source.uniform("time", (len(mask),))
        noise = partial(noise_source.normal, "noise")
        x_t, t = self._corrupt(batch["regions"], mask, time, noise)
        prediction = evaluate_network(network, x_t, mask, t, prepared.get("key_mask"), rows)
        return errors(
            prediction, batch, rows, self.active, self._spec.reduction, prepared.get(ENTRIES)
        )

    def best_output(self, batch: Batch, noise_source: NoiseSource) -> Tensor:
        """Return the features of the masked regions, (B, Q, F)."""
        prepared = batch if "mask" in batch else self.prepare(batch, noise_source)
        return take_rows(batch["regions"], prepared["query_index"])

    def prepare(self, batch: Batch, noise_source: NoiseSource) -> dict[str, Tensor]:
        """Draw the `mask` (B, R), index its regions, and add `key_mask` where a window is padded:
        values of the batch. Under `entry_mean`, add how many `entries` are masked."""
        mask = draw_mask(batch, noise_source, self._spec.mask_ratio)
        rows = masked_rows(mask)
        present = present_or_none(batch["present"])
        prepared = {"mask": mask, "query_index": rows.index, "query_valid": rows.valid}
        if present is not None:
            prepared["key_mask"] = present
        if self.counted:
            prepared[ENTRIES] = rows.valid.sum().double()
        return prepared

    @torch.no_grad()
    def metrics(
        self, network: nn.Module, batch: Batch, noise_source: NoiseSource
    ) -> dict[str, Tensor]:
        """Compute both components, the spread of a window's predictions, and the sums of r, R^2,
        MSE at mask ratio 0.5.

        Under `corruption: ddpm` the components are means over quarters of the timesteps, with
        `masked_t0` (least noise) to `masked_t3` by quarter, at four more forward passes.
        """
        mask = draw_mask(batch, noise_source, EVALUATION_RATIO)
        rows = masked_rows(mask)
        present = present_or_none(batch["present"])
        target = batch["regions"]
        x_t, t = one_step_inputs(self._model, self._schedule.num_steps, target, mask, noise_source)
        prediction = evaluate_network(network, x_t, mask, t, present, rows)

        def measure(quarter: int) -> dict[str, Tensor]:
            time = draw_times(noise_source, quarter, len(mask))
            x_t, t = self._corrupt(
                target, mask, time, partial(noise_source.normal, f"noise_t{quarter}")
            )
            at_time = evaluate_network(network, x_t, mask, t, present, rows)
            return errors_by_window(at_time, batch, rows, COMPONENTS)

        if self._model.corruption == "mask":
            metrics = errors_by_window(prediction, batch, rows, COMPONENTS)
        else:
            metrics = mean_over_quarters(measure, "masked")
        metrics["spread"] = spread(prediction, rows)
        sums = Agreement.of(take_rows(target, rows.index), prediction, rows.valid).total()
        return metrics | {f"sum_{name}": value / len(mask) for name, value in asdict(sums).items()}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the components and `spread`; `mse`, `r2` and `pearson` over all masked entries
        from sums.
        """
        sums = {
            name.removeprefix("sum_"): v for name, v in means.items() if name.startswith("sum_")
        }
        # float64: R^2 and r are small differences of large sums
        agreement = Agreement(
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()}
        )
        others = {name: value for name, value in means.items() if not name.startswith("sum_")}
        return others | {
            "mse": float(agreement.mse()),
            "r2": float(agreement.r2()),
            "pearson": float(agreement.pearson()),
        }

    def metric_names(self) -> Sequence[str]:
        """Return the names of `summary`."""
        quarters = quarter_names("masked") if self._model.corruption == "ddpm" else ()
        return (*COMPONENTS, *quarters, "spread", *AGREEMENT)

    def knows_optimum(self, law: Any) -> bool:
        """Return True for independent points of a mixture, and under `corruption: mask` for planted
        modules.
        """
        return isinstance(law, GaussianMixture) or (
            callable(law) and self._model.corruption == "mask"
        )

    @torch.no_grad()
    def excess_loss(
        self, network: nn.Module, law: Any, batch: Batch, noise_source: NoiseSource
    ) -> Tensor:
        """Compute the mean squared distance to the expected features of masked regions, per
        feature, (B,).

        `law`: a mixture, whose points inform about themselves alone; or x (B, R, F), mask, present
        (B, R) -> expected features (B, R, F), NumPy arrays all.
        """
        x = batch["regions"]
        mask = draw_mask(batch, noise_source, EVALUATION_RATIO)
        rows = masked_rows(mask)
        present = present_or_none(batch["present"])

        def errors(x_t: Tensor, t: Tensor) -> Tensor:
            prediction = evaluate_network(network, x_t, mask, t, present, rows)
            best = self._optimum(law, x_t, mask, batch["present"], t)
            return errors_by_window(prediction, {"regions": best}, rows, ("masked",))["masked"]

        def of_quarter(quarter: int) -> Tensor:
            time = draw_times(noise_source, quarter, len(mask))
            return errors(
                *self._corrupt(x, mask, time, partial(noise_source.normal, f"noise_t{quarter}"))
            )

        if self._model.corruption == "mask":
            return errors(
                *one_step_inputs(self._model, self._schedule.num_steps, x, mask, noise_source)
            )
        return quarter_mean(of_quarter)

    def _optimum(self, law: Any, x_t: Tensor, mask: Tensor, present: Tensor, t: Tensor) -> Tensor:
        """Compute the expected features of masked regions given x_t at timesteps t (B,): (B, R,
        F).
        """
        if not isinstance(law, GaussianMixture):
            return torch.from_numpy(law(*(to_numpy(each) for each in (x_t, mask, present)))).to(
                x_t.device
            )
        schedule = self._schedule
        tables = (schedule.sqrt_alphas_cumprod, schedule.sqrt_one_minus_alphas_cumprod)
        signal, spread = (table.to(t.device)[t][:, None, None] for table in tables)
        if self._model.corruption == "mask":
            # a masked point tells nothing
            signal = torch.zeros_like(signal)
            spread = torch.ones_like(spread)
        return law.expectations(x_t, signal, spread)[0]

    def _corrupt(
        self, x: Tensor, mask: Tensor, time: Tensor, noise: Callable[[Sequence[int]], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return x_t and the timesteps (B,) int64 of times (B,) in [0, 1]; under `mask`, x as it
        is.
        """
        num = self._schedule.num_steps
        # in float32, 0.99999997 times a large number is that number
        t = (time * num).long().clamp(max=num - 1)
        if self._model.corruption == "mask":
            return x, t
        return torch.where(mask[..., None], self._schedule.noised(x, noise(x.shape), t), x), t


def draw_mask(batch: Batch, noise_source: NoiseSource, ratio: float) -> Tensor:
    """Mask each region that is present with chance `ratio`, (B, R) bool: nested by ratio. Draws
    `mask`.
    """
    return draw_masks(batch, noise_source, (ratio,))[0]


def draw_masks(batch: Batch, noise_source: NoiseSource, ratios: Sequence[float]) -> list[Tensor]:
    """Draw the masks (B, R) of several ratios at once: each is what `draw_mask` returns. Draws
    `mask`.
    """
    present = batch["present"]
    uniform = noise_source.uniform("mask", present.shape)
    return [(uniform < ratio) & present for ratio in ratios]


def errors(
    prediction: Tensor,
    batch: Batch,
    rows: Rows,
    names: Sequence[str],
    reduction: Reduction,
    entries: Tensor | None,
) -> dict[str, Tensor]:
    """Mean squared errors of masked regions; prediction (B, Q, F). `RegionObjectiveSpec.reduction`
    says which mean.

    A window without a masked region counts as 0, in `entry_mean` not at all. `entries`: what
    `entry_mean` divides by, (); 0 where nothing is masked.
    """
    sums = _sums(prediction, batch, rows, names)
    if entries is not None:
        divisor = torch.where(entries > 0, entries, torch.ones_like(entries))
        return {name: each.sum() / divisor.to(each.dtype) for name, each in sums.items()}
    num = rows.valid.sum(1) if reduction != "zeroed_mean" else batch["present"].sum(1)
    return {name: each.div(num.clamp(min=1)).mean() for name, each in sums.items()}


def errors_by_window(
    prediction: Tensor, batch: Batch, rows: Rows, names: Sequence[str]
) -> dict[str, Tensor]:
    """Mean squared errors of each window's masked regions, (B,); 0 without any. prediction (B, Q,
    F).
    """
    num = rows.valid.sum(1).clamp(min=1)
    return {name: each / num for name, each in _sums(prediction, batch, rows, names).items()}


def _sums(prediction: Tensor, batch: Batch, rows: Rows, names: Sequence[str]) -> dict[str, Tensor]:
    """Sum a window's squared errors over its masked regions, (B,)."""
    squared = (prediction - take_rows(batch["regions"], rows.index).to(prediction.dtype)).square()
    by_region = {"masked": squared.mean(-1), "accessibility": squared[..., -1]}  # (B, Q)
    return {name: (by_region[name] * rows.valid).sum(1) for name in names}


def spread(prediction: Tensor, rows: Rows) -> Tensor:
    """Standard deviation of the predictions of one window's masked regions, RMS over features, mean
    over windows.
    """
    num = rows.valid.sum(1).clamp(min=1)[:, None]  # (B, 1)
    valid = rows.valid[..., None]
    mean = (prediction * valid).sum(1) / num  # (B, F)
    variance = ((prediction - mean[:, None]).square() * valid).sum(1) / num
    return variance.mean(-1).sqrt().mean()


@dataclass(frozen=True)
class Agreement:
    """Sums over pairs (target x, prediction y), float64, of one shape, which add up over batches;
    () for the total.
    """

    count: Tensor
    x: Tensor
    xx: Tensor
    y: Tensor
    yy: Tensor
    xy: Tensor

    @classmethod
    def of(cls, target: Tensor, prediction: Tensor, counts: Tensor) -> Agreement:
        """Sum by feature, (F,): target and prediction (..., F), `counts` (...) bool is true for the
        rows to compare.
        """
        weight = counts.reshape(-1, 1).double()
        x = target.reshape(-1, target.shape[-1]).double() * weight
        y = prediction.reshape(-1, target.shape[-1]).double() * weight
        count = weight.sum(0).expand(x.shape[-1])
        return cls(count, x.sum(0), (x * x).sum(0), y.sum(0), (y * y).sum(0), (x * y).sum(0))

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def total(self) -> Agreement:
        """Sum over features: sums of shape ()."""
        return Agreement(*(each.sum() for each in astuple(self)))

    @property
    def squared_error(self) -> Tensor:
        """Squared errors, summed."""
        return self.xx - 2 * self.xy + self.yy

    @property
    def variation(self) -> Tensor:
        """Squared deviations of x from its mean, summed."""
        return self.xx - self.x**2 / self.count.clamp(min=1)

    def mse(self) -> Tensor:
        """Mean squared error; 0 where nothing was compared."""
        return self.squared_error / self.count.clamp(min=1)

    def r2(self) -> Tensor:
        """1 - squared error / squared deviation from the mean target; 0 where the target does not
        vary.
        """
        return _ratio(self.variation - self.squared_error, self.variation)

    def pearson(self) -> Tensor:
        """Pearson's correlation; 0 where either side does not vary."""
        count = self.count.clamp(min=1)
        y_variation = (self.yy - self.y**2 / count).clamp(min=0)
        return _ratio(
            self.xy - self.x * self.y / count, (self.variation.clamp(min=0) * y_variation).sqrt()
        )

    def r2_within(self) -> Tensor:
        """R^2 against each feature's own mean, (F,) -> (): 1 - sum of squared errors / sum of
        squared deviations.
        """
        return _ratio(self.variation.sum() - self.squared_error.sum(), self.variation.sum())


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    return torch.where(bottom > TINY, top / bottom.clamp(min=TINY), torch.zeros_like(top))
