"""Measurements of predictors of masked regions, as tables and as named metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add

import numpy as np

from denoisers.region.agreement import Agreement

RATIOS = (0.15, 0.3, 0.5, 0.7, 0.9)
"""Chances of a region to be masked."""
MAIN_RATIO = 0.5
"""Mask ratio of the tables by motif and by chromosome, and of shares."""
STATISTICS = ("mse", "pearson", "r2", "r2_within")

Table = dict[str, np.ndarray]


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
    remark: str = ""
    """Remark on the model, for a title."""

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


def motif_r2(measurements: ImputationMeasurements, predictor: str) -> np.ndarray:
    """R^2 of each feature against its own mean at MAIN_RATIO, (F,)."""
    return measurements.by_predictor[predictor][MAIN_RATIO].whole.r2().cpu().numpy()


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
