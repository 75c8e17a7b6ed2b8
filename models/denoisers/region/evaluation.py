"""Evaluation of imputed regions on held-out windows at several mask ratios, beside baselines that need no network.

Baselines are averages, neighbours, and linear regression on neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import EvaluationResult, RealRows, RowSet
from denoisers.figures import Curve, Figure, Lines, Text
from denoisers.region.agreement import Agreement
from denoisers.region.figures import ONE_PREDICTION
from denoisers.region.network import predict, present_or_none
from denoisers.region.objective import draw_masks
from denoisers.region.spec import RegionObjectiveSpec, RegionSpec
from denoisers.tensors import masked_rows

MAX_BATCH_VALUES = 2**21
"""Most feature values of a batch of windows: the regression's inputs are then at most 80 MiB in float64."""
RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)
"""Chances of a region to be masked."""
MAIN_RATIO = 0.5
"""Mask ratio of the tables by motif and by chromosome, and of shares."""
STATISTICS = ("mse", "pearson", "r2", "r2_within")
Table = dict[str, np.ndarray]
Imputer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""x (B, R, C), mask and present (B, R) bool -> (M, C); the values of x at masked regions are unused."""
REACH = 2
"""Neighbours on each side that the regression uses."""
PENALTY = 1e-3
"""Penalty of the regression's squared weights, in variances of its standardised inputs."""
FIT_RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)
"""Mask ratios of the windows that the regression is fitted on, in turn."""
NUM_NAMED = 4
"""Features named at either end."""


@dataclass(frozen=True)
class RegionEvaluator:
    """Pearson's r, R^2 and squared error of masked regions over whole data sets (`denoisers.contract.Evaluator`)."""

    objective: RegionObjectiveSpec
    model: RegionSpec

    @torch.no_grad()
    def evaluate(
        self, network: nn.Module, train: RowSet, held_out: RowSet, references: Mapping[str, Any], batch_size: int
    ) -> EvaluationResult:
        """Return tables `r2`, `r2_within` (predictors by mask ratios), `by_ratio`, `by_motif` and `by_chromosome`.

        `references`: by name, x (B, R, F), mask, present (B, R) -> expected features (B, R, F), NumPy arrays all.
        """
        size = max(1, min(batch_size, MAX_BATCH_VALUES // (self.model.num_regions * self.model.num_features)))
        baselines = fit_baselines(train, size)
        predictors: dict[str, Imputer] = {**baselines, **{n: _on_arrays(each) for n, each in references.items()}}
        names: tuple[str, ...] = ()
        sums = {name: {ratio: dict[str, Agreement]() for ratio in RATIOS} for name in ("model", *predictors)}
        for rows in held_out.batches(size):
            x, present = rows.batch["regions"], rows.batch["present"]
            names = names or tuple(rows.names.get("regions") or (f"feature_{i}" for i in range(x.shape[-1])))
            for ratio, mask in zip(RATIOS, draw_masks(rows.batch, rows.noise, RATIOS), strict=True):
                predicted = predict(
                    network, self.model, self.objective.noise.steps, x, mask, present_or_none(present), rows.noise
                )
                _add(sums["model"][ratio], rows, mask, predicted[mask])
                for name, predictor in predictors.items():
                    _add(sums[name][ratio], rows, mask, predictor(x, mask, present))
        by_predictor = {
            name: {ratio: RatioMeasurement(groups) for ratio, groups in by_ratio.items()}
            for name, by_ratio in sums.items()
        }
        measured = ImputationMeasurements(by_predictor, names, tuple(baselines), tuple(references))
        remark = ONE_PREDICTION if self.model.predicts_one_thing else ""
        figures = {"r2_by_mask_ratio": r2_by_mask_ratio(measured, remark), "r2_by_motif": r2_by_motif(measured)}
        return EvaluationResult(evaluation_metrics(measured), evaluation_tables(measured), figures)


def _on_arrays(reference: Any) -> Imputer:
    """Return a reference, a function of NumPy arrays that gives all features (B, R, F), as an imputer."""

    def imputer(x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        expected = reference(*(each.cpu().numpy() for each in (x, mask, present)))
        return torch.from_numpy(expected).to(mask.device)[mask]

    return imputer


def _add(groups: dict[str, Agreement], rows: RealRows, mask: Tensor, prediction: Tensor) -> None:
    """Add predictions (M, F) to the sums of their windows' chromosomes."""
    target, window = rows.batch["regions"][mask], mask.nonzero()[:, 0]
    # Windows of a store without chromosomes are all of one.
    chromosome = rows.columns.get("chromosome", np.full(len(mask), "all")).astype(str)
    for name in np.unique(chromosome):
        here = torch.from_numpy(chromosome == name).to(window.device)[window]
        counts = torch.ones(int(here.sum()), dtype=torch.bool, device=here.device)
        sums = Agreement.of(target[here], prediction[here], counts)
        groups[str(name)] = groups[str(name)] + sums if str(name) in groups else sums


@dataclass(frozen=True)
class RatioMeasurement:
    """Agreement of a predictor at one mask ratio."""

    by_chromosome: Mapping[str, Agreement]
    """Sums by feature, (F,)."""

    @cached_property
    def whole(self) -> Agreement:
        """Sums by feature over all chromosomes, (F,)."""
        return reduce(add, self.by_chromosome.values())


@dataclass(frozen=True)
class ImputationMeasurements:
    """Agreement of all predictors at all mask ratios."""

    by_predictor: Mapping[str, Mapping[float, RatioMeasurement]]
    """Measurements by predictor, then by mask ratio; `model` comes first."""
    features: tuple[str, ...]
    baselines: tuple[str, ...]
    """Predictors that were fitted on training rows."""
    references: tuple[str, ...]
    """Predictors that come with the data, such as the optimum of generated data."""

    def r2_within(self, predictor: str, ratio: float) -> float:
        """Return R^2 against each feature's own mean."""
        return float(self.by_predictor[predictor][ratio].whole.r2_within())

    def share(self, predictor: str, reference: str) -> float | None:
        """Return the predictor's share of the reference's R^2 within features; None if that is not above 0."""
        best = self.r2_within(reference, MAIN_RATIO)
        return self.r2_within(predictor, MAIN_RATIO) / best if best > 0 else None


def ratio_name(ratio: float) -> str:
    """Name a mask ratio: `r50` for half of the regions masked."""
    return f"r{round(100 * ratio)}"


def evaluation_metrics(measurements: ImputationMeasurements) -> dict[str, float]:
    """Name the metrics: `r2/r50` of the model, `baseline/nearest/r2/r50`, `reference/optimal/r2/r50` and so on."""
    metrics: dict[str, float] = {}
    for name, by_ratio in measurements.by_predictor.items():
        prefix = f"baseline/{name}/" if name in measurements.baselines else f"reference/{name}/"
        prefix = "" if name == "model" else prefix
        for ratio, at_ratio in by_ratio.items():
            figures = overall(at_ratio.whole)
            metrics |= {f"{prefix}{figure}/{ratio_name(ratio)}": figures[figure] for figure in STATISTICS}
    for reference in measurements.references:
        share = measurements.share("model", reference)
        metrics |= {} if share is None else {f"{reference}_share": share}
    return metrics


def overall(sums: Agreement) -> dict[str, float]:
    """Compute `entries` (number of values compared) and STATISTICS, over all features."""
    total = sums.total()
    return {
        "entries": int(total.count),
        "mse": float(total.mse()),
        "pearson": float(total.pearson()),
        "r2": float(total.r2()),
        "r2_within": float(sums.r2_within()),
    }


def evaluation_tables(measurements: ImputationMeasurements) -> dict[str, Table]:
    """Make `r2` and `r2_within` for people (predictors by mask ratios), and the other tables for tools."""
    return {
        "r2": _wide(measurements, "r2"),
        "r2_within": _wide(measurements, "r2_within") | _shares(measurements),
        "by_ratio": _columns(
            {"predictor": name, "mask_ratio": ratio, **overall(at_ratio.whole)}
            for name, by_ratio in measurements.by_predictor.items()
            for ratio, at_ratio in by_ratio.items()
        ),
        "by_motif": _columns(row for name in measurements.by_predictor for row in _motif_rows(measurements, name)),
        "by_chromosome": _columns(
            {"predictor": name, "chromosome": chromosome, **overall(sums)}
            for name, by_ratio in measurements.by_predictor.items()
            for chromosome, sums in by_ratio[MAIN_RATIO].by_chromosome.items()
        ),
    }


def _motif_rows(measurements: ImputationMeasurements, name: str) -> Iterable[dict[str, object]]:
    sums = measurements.by_predictor[name][MAIN_RATIO].whole
    values = [each.tolist() for each in (sums.count.long(), sums.mse(), sums.pearson(), sums.r2())]
    for motif, entries, mse, pearson, r2 in zip(measurements.features, *values, strict=True):
        yield {"predictor": name, "motif": motif, "entries": entries, "mse": mse, "pearson": pearson, "r2": r2}


def _wide(measurements: ImputationMeasurements, figure: str) -> Table:
    columns = {"predictor": np.array(list(measurements.by_predictor))}
    for ratio in RATIOS:
        values = [overall(by_ratio[ratio].whole)[figure] for by_ratio in measurements.by_predictor.values()]
        columns[f"masked {ratio:.0%}"] = np.array(values)
    return columns


def _shares(measurements: ImputationMeasurements) -> Table:
    """Every predictor's share of a reference's R^2 within features at MAIN_RATIO."""
    shares: Table = {}
    for reference in measurements.references:
        values = [measurements.share(name, reference) for name in measurements.by_predictor]
        if None not in values:
            shares[f"share of {reference} at {MAIN_RATIO:.0%}"] = np.array(values)
    return shares


def _columns(rows: Iterable[Mapping[str, object]]) -> Table:
    listed = list(rows)
    return {name: np.array([row[name] for row in listed]) for name in listed[0]}


@dataclass(frozen=True)
class Neighbours:
    """Nearest visible regions of every masked region: left ones by distance, then right ones."""

    values: Tensor
    """(M, N, C); 0 where there is no such region."""
    exists: Tensor
    """(M, N) bool."""
    distance: Tensor
    """(M, N) int64 in regions; 0 where there is no such region."""


def neighbours(x: Tensor, mask: Tensor, present: Tensor, reach: int = REACH) -> Neighbours:
    """Find `reach` regions on each side of every masked one, skipping masked regions and padding."""
    visible = present & ~mask
    places = masked_rows(visible).index  # (B, most visible): index of the k-th visible region of a window
    window, region = mask.nonzero(as_tuple=True)
    before = visible.cumsum(1)[window, region]  # visible regions to the left
    steps = torch.arange(reach, device=x.device)
    rank = before[:, None] + torch.cat([-1 - steps, steps])  # (M, N): rank among the window's visible regions
    exists = (rank >= 0) & (rank < visible.sum(1)[window, None])
    place = places[window[:, None], rank.clamp(0, places.shape[1] - 1)]
    values = torch.where(exists[..., None], x[window[:, None], place], 0)
    return Neighbours(values, exists, (place - region[:, None]).abs() * exists)


@dataclass(frozen=True)
class MotifMean:
    """Prediction of every feature's mean over the training regions."""

    mean: Tensor
    """(C,) float64."""

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        return self.mean.expand(int(mask.sum()), -1)


@dataclass(frozen=True)
class Nearest:
    """Prediction of the nearest visible region, the left one of two; `otherwise` (C,) where a window has none."""

    otherwise: Tensor

    def __call__(self, x: Tensor, mask: Tensor, present: Tensor) -> Tensor:
        near = neighbours(x, mask, present, reach=1)
        (left, right), (to_left, to_right) = near.exists.unbind(1), near.distance.unbind(1)
        takes_left = left & (~right | (to_left <= to_right))
        nearest = torch.where(takes_left[:, None], near.values[:, 0], near.values[:, 1]).to(self.otherwise)
        return torch.where((left | right)[:, None], nearest, self.otherwise)


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


@dataclass
class _Moments:
    """Sums over masked training regions (inputs z, targets y), and over all training regions: float64."""

    num: int
    z: Tensor
    y: Tensor
    zz: Tensor
    zy: Tensor
    num_regions: int
    regions: Tensor

    @classmethod
    def zeros(cls, features: int, device: torch.device) -> _Moments:
        inputs = 2 * REACH * (features + 2)
        z, y, zz, zy, regions = (
            torch.zeros(shape, dtype=torch.float64, device=device)
            for shape in ((inputs,), (features,), (inputs, inputs), (inputs, features), (features,))
        )
        return cls(0, z, y, zz, zy, 0, regions)

    def add(self, rows: RealRows, first: int) -> None:
        """Add rows, of which the first one has index `first` in the data set."""
        x, present = rows.batch["regions"], rows.batch["present"]
        ratios = torch.tensor(FIT_RATIOS, device=x.device)
        ratio = ratios[(first + torch.arange(len(x), device=x.device)) % len(FIT_RATIOS)]
        mask = (rows.noise.uniform("baseline_mask", present.shape) < ratio[:, None]) & present
        z, y = _inputs(x, mask, present), x[mask].double()
        self.num += len(z)
        self.z += z.sum(0)
        self.y += y.sum(0)
        self.zz.addmm_(z.T, z)
        self.zy.addmm_(z.T, y)
        self.num_regions += int(present.sum())
        self.regions += x[present].sum(0, dtype=torch.float64)

    def motif_mean(self) -> Tensor:
        """Mean of every feature over the training regions."""
        return self.regions / max(1, self.num_regions)

    def ridge(self) -> Ridge:
        """Minimise the squared error plus PENALTY times the squared weights of standardised inputs."""
        if not self.num:
            return Ridge(torch.zeros_like(self.zy), self.motif_mean())
        z, y = self.z / self.num, self.y / self.num
        covariance = self.zz / self.num - torch.outer(z, z)
        shared = self.zy / self.num - torch.outer(z, y)
        variance = covariance.diagonal()
        scale = torch.where(variance > 1e-12, variance, 1.0).sqrt()  # a constant input gets no weight
        penalty = PENALTY * torch.eye(len(z), dtype=z.dtype, device=z.device)
        weights = torch.linalg.solve(covariance / torch.outer(scale, scale) + penalty, shared / scale[:, None])
        weights = weights / scale[:, None]
        return Ridge(weights, y - z @ weights)


def fit_baselines(train: RowSet, size: int) -> dict[str, Imputer]:
    """Fit `motif_mean`, `nearest` and `ridge` from one pass over the rows, `size` at a time."""
    moments: _Moments | None = None
    first = 0
    for rows in train.batches(size):
        x = rows.batch["regions"]
        moments = moments or _Moments.zeros(x.shape[-1], x.device)
        moments.add(rows, first)
        first += len(x)
    assert moments is not None, "a run has training rows"
    mean = moments.motif_mean()
    return {"motif_mean": MotifMean(mean), "nearest": Nearest(mean), "ridge": moments.ridge()}


def r2_by_mask_ratio(measurements: ImputationMeasurements, remark: str) -> Figure:
    """Draw a curve for each predictor, over all entries and within features; `remark` on the model joins the title."""
    at_main = ", ".join(
        f"{_label(name)} {overall(by_ratio[MAIN_RATIO].whole)['r2_within']:.3f}"
        for name, by_ratio in measurements.by_predictor.items()
    )
    return Figure(
        [
            Lines(_curves(measurements, figure), title, "share of regions masked", "R²")
            for figure, title in (
                ("r2_within", "Against each feature's own mean"),
                ("r2", "Against the mean of all entries"),
            )
        ],
        title=". ".join(filter(None, ("R² of masked regions", remark))),
        alt=f"Two panels of R² over the share of regions masked, {RATIOS[0]:g} to {RATIOS[-1]:g}, a curve a predictor: "
        "against each feature's own mean, and against the mean of all entries. Against each feature's own mean, with "
        f"{MAIN_RATIO:.0%} masked: {at_main}.",
    )


def _curves(measurements: ImputationMeasurements, figure: str) -> list[Curve]:
    ratios = np.array(RATIOS)
    return [
        Curve(ratios, np.array([overall(by_ratio[ratio].whole)[figure] for ratio in RATIOS]), _label(name))
        for name, by_ratio in measurements.by_predictor.items()
    ]


def r2_by_motif(measurements: ImputationMeasurements) -> Figure:
    """Draw features by the model's R^2, best first, and name the ends; the other predictors on the same features."""
    r2 = {name: each[MAIN_RATIO].whole.r2().cpu().numpy() for name, each in measurements.by_predictor.items()}
    order = np.argsort(-r2["model"], kind="stable")
    rank = np.arange(1, len(order) + 1)
    curves = [Curve(rank, values[order], _label(name)) for name, values in r2.items()]
    title = f"{MAIN_RATIO:.0%} of the regions masked, against each feature's own mean"
    lines = Lines(curves, title, "feature, by the model's R²", "R²")
    named = [(measurements.features[i], r2["model"][i]) for i in order]
    best, worst = named[:NUM_NAMED], named[-NUM_NAMED:]
    passages = [
        f"{end}: {', '.join(f'{name} {value:.2f}' for name, value in features)}"
        for end, features in (("best", best), ("worst", worst))
    ]
    others = ", ".join(_label(name) for name in measurements.by_predictor if name != "model")
    alt = (
        f"Curves of R² by feature with {MAIN_RATIO:.0%} of the regions masked, of the model and, on the same features, "
        f"of {others}. {len(order)} features in the order of the model's R²; {'; '.join(passages)}."
    )
    return Figure([lines, Text(passages, "Features by name")], title="R² by feature", columns=1, alt=alt)


def _label(name: str) -> str:
    return name.replace("_", " ")
