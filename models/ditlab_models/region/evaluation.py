"""Evaluation of imputed regions on held-out windows at several mask ratios, beside averages,
neighbours and regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ditlab_models.contract import EvaluationResult, RealRows, RowSet, Samples
from ditlab_models.figures import Curve, Figure, Lines, Panel, Text
from ditlab_models.intervals import Estimate, correlation_estimate, ratio_estimate
from ditlab_models.region.figures import ONE_PREDICTION
from ditlab_models.region.network import evaluate_network, one_step_inputs, present_or_none
from ditlab_models.region.objective import TINY, Agreement, draw_masks
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec
from ditlab_models.tensors import masked_rows, to_numpy

MAX_BATCH_VALUES = 2**21
"""Most feature values of a batch of windows: the regression's inputs are then at most 80 MiB in
float64.
"""
RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)
"""Chances of a region to be masked, also of the windows that the regression is fitted on, in
turn.
"""
MAIN_RATIO = 0.5
"""Mask ratio of the tables by motif, chromosome and cell type, of intervals and shares."""
STATISTICS = ("mse", "pearson", "r2", "r2_within")
Table = dict[str, np.ndarray]
Imputer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""x (B, R, C), mask and present (B, R) bool -> (M, C); the values of x at masked regions are
unused.
"""
REACH = 2
"""Neighbours on each side that the regression uses."""
PENALTY = 1e-3
"""Penalty of the regression's squared weights, in variances of its standardised inputs."""
NUM_NAMED = 4
"""Features named at either end."""


@dataclass(frozen=True)
class RegionEvaluator:
    """Pearson's r, R^2 and squared error of masked regions over data sets
    (`ditlab_models.contract.Evaluator`).
    """

    objective: RegionObjectiveSpec
    model: RegionSpec
    sample_metrics = STATISTICS
    """Metrics of imputed regions."""

    @torch.no_grad()
    def evaluate(
        self,
        network: nn.Module,
        train: RowSet,
        held_out: RowSet,
        references: Mapping[str, Any],
        batch_size: int,
    ) -> EvaluationResult:
        """Return tables `r2`, `r2_within` (predictors by mask ratios), `by_ratio`, `by_motif`, and
        `by_chromosome` and `by_cell_type` where the rows have such a column.

        `references`: by name, x (B, R, F), mask, present (B, R) -> expected features (B, R, F),
        NumPy arrays all. Metrics are `r2/r50` of the model, `baseline/nearest/r2/r50`,
        `reference/optimal/r2/r50` and so on; at r50 the model's r2 and pearson have the ends of 95
        % intervals, `r2/r50_low` and `r2/r50_high`.
        """
        size = max(
            1,
            min(batch_size, MAX_BATCH_VALUES // (self.model.num_regions * self.model.num_features)),
        )
        imputers = fit_baselines(train, size)
        prefixes = {
            "model": "",
            **{name: f"baseline/{name}/" for name in imputers},
            **{name: f"reference/{name}/" for name in references},
        }
        sums = PredictorSums(list(prefixes))
        for rows in held_out.batches(size):
            for ratio, mask in zip(RATIOS, draw_masks(rows.batch, rows.noise, RATIOS), strict=True):
                predictions = self._predictions(network, rows, mask, imputers, references)
                sums.add(ratio, rows, mask, predictions)
        whole = sums.whole()
        overall = {
            name: {ratio: _overall(at) for ratio, at in by.items()} for name, by in whole.items()
        }
        metrics = {}
        for name, by_ratio in overall.items():
            for ratio, values in by_ratio.items():
                for figure in STATISTICS:
                    metrics[f"{prefixes[name]}{figure}/{_at_ratio(ratio)}"] = values[figure]
        metrics |= sums.interval_ends()
        tables = _tables(whole, overall, sums.features) | sums.group_tables()
        within = {name: by_ratio[MAIN_RATIO]["r2_within"] for name, by_ratio in overall.items()}
        for best in references:
            if within[best] > 0:  # every predictor's share of a reference's R^2
                shares = [each / within[best] for each in within.values()]
                metrics[f"{best}_share"] = shares[0]
                tables["r2_within"][f"share of {best} at {MAIN_RATIO:.0%}"] = np.array(shares)
        remark = f". {ONE_PREDICTION}" if self.model.predicts_one_thing else ""
        of_ratio = r2_by_mask_ratio(overall, remark)
        of_motif = r2_by_motif(whole, sums.features)
        return EvaluationResult(
            metrics, tables, {"r2_by_mask_ratio": of_ratio, "r2_by_motif": of_motif}
        )

    def _predictions(
        self,
        network: nn.Module,
        rows: RealRows,
        mask: Tensor,
        imputers: Mapping[str, Imputer],
        references: Mapping[str, Any],
    ) -> dict[str, Tensor]:
        """Predict the features (M, F) of masked regions, by predictor."""
        x = rows.batch["regions"]
        present = rows.batch["present"]
        x_t, t = one_step_inputs(self.model, self.objective.noise.steps, x, mask, rows.noise)
        predicted = evaluate_network(network, x_t, mask, t, present_or_none(present), None)
        predictions = {"model": predicted[mask]}
        predictions |= {name: imputer(x, mask, present) for name, imputer in imputers.items()}
        for name, reference in references.items():
            expected = reference(*(to_numpy(each) for each in (x, mask, present)))
            predictions[name] = torch.from_numpy(expected).to(mask.device)[mask]
        return predictions

    def measure_samples(
        self, train: RowSet, held_out: RowSet, batch_size: int
    ) -> Callable[[Samples], dict[str, float]]:
        """Return the comparison of a sampler's imputed regions with the measured ones, over all
        features.
        """

        def measure(samples: Samples) -> dict[str, float]:
            mask = samples.conditions["mask"]
            target = samples.conditions["regions"][mask]
            overall = _overall(Agreement.of(target, samples.values[mask], mask[mask]))
            return {name: overall[name] for name in STATISTICS}

        return measure


Sums = dict[str, dict[float, dict[str, Agreement]]]
Overall = Mapping[str, Mapping[float, Mapping[str, float]]]


def _add(
    groups: dict[str, Agreement],
    rows: RealRows,
    mask: Tensor,
    prediction: Tensor,
    column: str = "chromosome",
) -> None:
    """Add predictions (M, F) to the sums of their windows' classes; windows without such a column
    are all of one.
    """
    target = rows.batch["regions"][mask]
    window = mask.nonzero()[:, 0]
    classes = rows.columns.get(column, np.full(len(mask), "all")).astype(str)
    for name in np.unique(classes):
        here = torch.from_numpy(classes == name).to(window.device)[window]
        counts = torch.ones(int(here.sum()), dtype=torch.bool, device=here.device)
        sums = Agreement.of(target[here], prediction[here], counts)
        if str(name) in groups:
            sums = groups[str(name)] + sums
        groups[str(name)] = sums


class PredictorSums:
    """Sums over masked regions, by feature, of each predictor."""

    def __init__(self, predictors: Sequence[str]) -> None:
        self.features: list[str] = []
        """Names of the features."""
        self._windows: list[np.ndarray] = []
        """At MAIN_RATIO by window, (W, 7): number of masked values, sums of them, of the model's
        predictions, of both squares, of products and of squared errors."""
        self._by_ratio: Sums = {name: {ratio: {} for ratio in RATIOS} for name in predictors}
        """Sums by predictor, mask ratio and chromosome."""
        self._by_cell = {name: dict[str, Agreement]() for name in predictors}
        """Sums by predictor and cell type, at MAIN_RATIO."""

    def add(
        self, ratio: float, rows: RealRows, mask: Tensor, predictions: Mapping[str, Tensor]
    ) -> None:
        """Add a batch's predictions (M, F) of masked regions."""
        if not self.features:
            numbered = (f"feature_{i}" for i in range(rows.batch["regions"].shape[-1]))
            self.features = list(rows.names.get("regions") or numbered)
        for name, prediction in predictions.items():
            _add(self._by_ratio[name][ratio], rows, mask, prediction)
            if ratio == MAIN_RATIO and "cell_type" in rows.columns:
                _add(self._by_cell[name], rows, mask, prediction, "cell_type")
        if ratio == MAIN_RATIO:
            target = rows.batch["regions"][mask].double()
            predicted = predictions["model"].double()
            parts = (
                torch.ones_like(target),
                target,
                predicted,
                target.square(),
                predicted.square(),
                target * predicted,
                (target - predicted).square(),
            )
            values = torch.stack([each.sum(1) for each in parts], 1)  # (M, 7)
            windows = values.new_zeros(len(mask), len(parts)).index_add_(
                0, mask.nonzero()[:, 0], values
            )
            self._windows.append(to_numpy(windows))

    def whole(self) -> dict[str, dict[float, Agreement]]:
        """Return the sums by predictor and mask ratio."""
        return {
            name: {ratio: reduce(add, at.values()) for ratio, at in by_ratio.items()}
            for name, by_ratio in self._by_ratio.items()
        }

    def interval_ends(self) -> dict[str, float]:
        """Return the ends of the model's intervals at MAIN_RATIO, and their degrees of freedom,
        where they are known. They take windows for independent samples.
        """
        windows = np.concatenate(self._windows)
        num, x, _, xx, yy, _, error = windows.T
        mean = x.sum() / max(1, num.sum())
        variation = xx - 2 * mean * x + num * mean**2
        found = {}
        if variation.sum() > TINY and len(error) > 1:
            ratio = ratio_estimate(error, variation)
            found["r2"] = Estimate(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, ratio.df)
            predicted = windows[:, 2]
            spread = yy.sum() - predicted.sum() ** 2 / num.sum()
            if spread > TINY:
                found["pearson"] = correlation_estimate(windows[:, :6])
        named: dict[str, float] = {}
        for figure, each in found.items():
            name = f"{figure}/{_at_ratio(MAIN_RATIO)}"
            ends = each.named(name)
            ends.pop(name)
            named |= ends
        return named

    def group_tables(self) -> dict[str, Table]:
        """Return `by_chromosome` and `by_cell_type`, at MAIN_RATIO, where the rows have such a
        column.
        """
        by_chromosome = {name: by_ratio[MAIN_RATIO] for name, by_ratio in self._by_ratio.items()}
        tables = {}
        for column, by_name in (("chromosome", by_chromosome), ("cell_type", self._by_cell)):
            rows = []
            for name, groups in by_name.items():
                for group, at in groups.items():
                    rows.append({"predictor": name, column: group, **_overall(at)})
            if rows:
                tables[f"by_{column}"] = _columns(rows)
        return tables


def _overall(sums: Agreement) -> dict[str, float]:
    """Compute `entries` (number of values compared) and STATISTICS, over all features."""
    total = sums.total()
    values = {
        "mse": total.mse(),
        "pearson": total.pearson(),
        "r2": total.r2(),
        "r2_within": sums.r2_within(),
    }
    return {"entries": int(total.count), **{name: float(value) for name, value in values.items()}}


def _tables(
    whole: Mapping[str, Mapping[float, Agreement]], overall: Overall, features: list[str]
) -> dict[str, Table]:
    """Make `r2` and `r2_within` for people (predictors by mask ratios), `by_ratio` and `by_motif`
    for tools.
    """
    tables = {}
    for figure in ("r2", "r2_within"):
        tables[figure] = {"predictor": np.array(list(overall))} | {
            f"masked {ratio:.0%}": np.array(
                [by_ratio[ratio][figure] for by_ratio in overall.values()]
            )
            for ratio in RATIOS
        }
    rows = []
    for name, by_ratio in overall.items():
        for ratio, values in by_ratio.items():
            rows.append({"predictor": name, "mask_ratio": ratio, **values})
    tables["by_ratio"] = _columns(rows)
    motifs = []
    for name, sums in whole.items():
        at = sums[MAIN_RATIO]
        columns = {
            "entries": at.count.long(),
            "mse": at.mse(),
            "pearson": at.pearson(),
            "r2": at.r2(),
        }
        for i, motif in enumerate(features):
            values = {key: each[i].item() for key, each in columns.items()}
            motifs.append({"predictor": name, "motif": motif, **values})
    tables["by_motif"] = _columns(motifs)
    return tables


def _columns(rows: Sequence[Mapping[str, object]]) -> Table:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _at_ratio(ratio: float) -> str:
    """Return the name of a mask ratio in names of metrics: `r50`."""
    return f"r{round(100 * ratio)}"


class Neighbours(NamedTuple):
    """Nearest visible regions of every masked region: left ones by distance, then right ones."""

    values: Tensor
    """(M, N, C); 0 where there is no such region."""
    exists: Tensor
    """(M, N) bool."""
    distance: Tensor
    """(M, N) int64 in regions; 0 where there is no such region."""


def neighbours(x: Tensor, mask: Tensor, present: Tensor, reach: int = REACH) -> Neighbours:
    """Find `reach` regions on each side of every masked one, skipping masked regions and
    padding.
    """
    visible = present & ~mask
    # (B, most visible): index of the k-th visible region of a window
    places = masked_rows(visible).index
    window, region = mask.nonzero(as_tuple=True)
    before = visible.cumsum(1)[window, region]  # visible regions to the left
    steps = torch.arange(reach, device=x.device)
    # (M, N): rank among the window's visible regions
    rank = before[:, None] + torch.cat([-1 - steps, steps])
    exists = (rank >= 0) & (rank < visible.sum(1)[window, None])
    place = places[window[:, None], rank.clamp(0, places.shape[1] - 1)]
    values = torch.where(exists[..., None], x[window[:, None], place], 0)
    return Neighbours(values, exists, (place - region[:, None]).abs() * exists)


def impute_nearest(x: Tensor, mask: Tensor, present: Tensor, otherwise: Tensor) -> Tensor:
    """Predict the nearest visible region, the left one of two; `otherwise` (C,) where a window has
    none.
    """
    near = neighbours(x, mask, present, reach=1)
    (left, right) = near.exists.unbind(1)
    (to_left, to_right) = near.distance.unbind(1)
    takes_left = left & (~right | (to_left <= to_right))
    nearest = torch.where(takes_left[:, None], near.values[:, 0], near.values[:, 1]).to(otherwise)
    return torch.where((left | right)[:, None], nearest, otherwise)


@dataclass(frozen=True)
class Ridge:
    """Linear regression on the neighbours' features, existence and distances."""

    weights: Tensor
    """(N * C + 2 * N, C) float64."""
    intercept: Tensor
    """(C,) float64."""

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        return _inputs(x, mask, present) @ self.weights + self.intercept


def _inputs(x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
    """Inputs of the regression, (M, N * C + 2 * N) float64."""
    near = neighbours(x, mask, present)
    return torch.cat([near.values.flatten(1), near.exists, near.distance], dim=1).double()


def fit_baselines(train: RowSet, size: int) -> dict[str, Imputer]:
    """Fit `motif_mean`, `nearest` and `ridge` (of standardised inputs, PENALTY) from one pass over
    the rows, `size` at a time."""
    first = num = num_regions = 0
    sums: list[Tensor] = []
    for rows in train.batches(size):
        x = rows.batch["regions"]
        present = rows.batch["present"]
        if not sums:
            features = x.shape[-1]
            inputs = 2 * REACH * (x.shape[-1] + 2)
            shapes = ((inputs,), (features,), (inputs, inputs), (inputs, features), (features,))
            sums = [torch.zeros(shape, dtype=torch.float64, device=x.device) for shape in shapes]
        ratios = torch.tensor(RATIOS, device=x.device)
        ratio = ratios[(first + torch.arange(len(x), device=x.device)) % len(RATIOS)]
        mask = (rows.noise.uniform("baseline_mask", present.shape) < ratio[:, None]) & present
        z = _inputs(x, mask, present)
        y = x[mask].double()
        first = first + len(x)
        num = num + len(z)
        num_regions = num_regions + int(present.sum())
        sum_z, sum_y, sum_zz, sum_zy, regions = sums
        sum_z += z.sum(0)
        sum_y += y.sum(0)
        sum_zz.addmm_(z.T, z)
        sum_zy.addmm_(z.T, y)
        regions += x[present].sum(0, dtype=torch.float64)
    assert sums, "a run has training rows"
    motif_mean = regions / max(1, num_regions)
    ridge = Ridge(torch.zeros_like(sum_zy), motif_mean)
    if num:
        ridge = _solve_ridge(sum_z / num, sum_y / num, sum_zz / num, sum_zy / num)
    return {
        "motif_mean": lambda x, mask, present: motif_mean.expand(int(mask.sum()), -1),
        "nearest": partial(impute_nearest, otherwise=motif_mean),
        "ridge": ridge,
    }


def _solve_ridge(z: Tensor, y: Tensor, zz: Tensor, zy: Tensor) -> Ridge:
    """Solve for the regression of y on z by the means of both, (N,) and (C,), and of their
    products.
    """
    covariance = zz - torch.outer(z, z)
    shared = zy - torch.outer(z, y)
    variance = covariance.diagonal()
    # a constant input gets no weight
    scale = torch.where(variance > 1e-12, variance, 1.0).sqrt()
    penalty = PENALTY * torch.eye(len(z), dtype=z.dtype, device=z.device)
    weights = torch.linalg.solve(
        covariance / torch.outer(scale, scale) + penalty, shared / scale[:, None]
    )
    weights = weights / scale[:, None]
    return Ridge(weights, y - z @ weights)


def r2_by_mask_ratio(overall: Overall, remark: str) -> Figure:
    """Draw a curve for each predictor, over all entries and within features; `remark` on the model
    joins the title.
    """
    panels = []
    for figure, title in (
        ("r2_within", "Against each feature's own mean"),
        ("r2", "Against the mean of all entries"),
    ):
        curves = [
            Curve(
                np.array(RATIOS),
                np.array([by_ratio[ratio][figure] for ratio in RATIOS]),
                name.replace("_", " "),
            )
            for name, by_ratio in overall.items()
        ]
        panels.append(Lines(curves, title, "share of regions masked", "R²"))
    return Figure(panels, title=f"R² of masked regions{remark}")


def r2_by_motif(whole: Mapping[str, Mapping[float, Agreement]], features: list[str]) -> Figure:
    """Draw features by the model's R^2, best first, and name the ends; the other predictors on the
    same features.
    """
    r2 = {name: to_numpy(each[MAIN_RATIO].r2()) for name, each in whole.items()}
    order = np.argsort(-r2["model"], kind="stable")
    rank = np.arange(1, len(order) + 1)
    curves = [Curve(rank, values[order], name.replace("_", " ")) for name, values in r2.items()]
    title = f"{MAIN_RATIO:.0%} of the regions masked, against each feature's own mean"
    named = [f"{features[i]} {r2['model'][i]:.2f}" for i in order]
    passages = [f"best: {', '.join(named[:NUM_NAMED])}", f"worst: {', '.join(named[-NUM_NAMED:])}"]
    panels: list[Panel] = [
        Lines(curves, title, "feature, by the model's R²", "R²"),
        Text(passages, "Features by name"),
    ]
    return Figure(panels, title="R² by feature", columns=1)
