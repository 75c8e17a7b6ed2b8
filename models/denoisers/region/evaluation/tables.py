"""What was measured of predictors of masked regions, as tables and as named numbers."""

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
"""That of tables by motif and by chromosome, and of shares."""
FIGURES = ("mse", "pearson", "r2", "r2_within")

Table = dict[str, np.ndarray]


@dataclass(frozen=True)
class Measured:
    """A predictor at one mask ratio."""

    by_chromosome: Mapping[str, Agreement]
    """Sums by feature, (F,)."""

    @cached_property
    def whole(self) -> Agreement:
        """Sums by feature over all chromosomes, (F,)."""
        return reduce(add, self.by_chromosome.values())


@dataclass(frozen=True)
class Measurements:
    """All predictors at all mask ratios."""

    of: Mapping[str, Mapping[float, Measured]]
    """By predictor, then by mask ratio; `model` comes first."""
    features: tuple[str, ...]
    baselines: tuple[str, ...]
    """Predictors that were fitted on training rows."""
    references: tuple[str, ...]
    """Predictors that the data's maker gave."""
    remark: str = ""
    """What a person should know of the model, for a title."""

    def r2_within(self, predictor: str, ratio: float) -> float:
        return float(self.of[predictor][ratio].whole.r2_within())

    def share(self, predictor: str, reference: str) -> float | None:
        """Of the reference's R^2 within features; None where the reference explains nothing."""
        best = self.r2_within(reference, MAIN_RATIO)
        return self.r2_within(predictor, MAIN_RATIO) / best if best > 0 else None


def ratio_name(ratio: float) -> str:
    """`r50`: half of the regions masked."""
    return f"r{round(100 * ratio)}"


def assessment_metrics(found: Measurements) -> dict[str, float]:
    """`r2/r50` and so on of the model, `baseline/nearest/r2/r50`, `reference/optimal/r2/r50`, `optimal_share`."""
    metrics: dict[str, float] = {}
    for name, by_ratio in found.of.items():
        prefix = f"baseline/{name}/" if name in found.baselines else f"reference/{name}/"
        prefix = "" if name == "model" else prefix
        for ratio, measured in by_ratio.items():
            figures = overall(measured.whole)
            metrics |= {f"{prefix}{figure}/{ratio_name(ratio)}": figures[figure] for figure in FIGURES}
    for reference in found.references:
        share = found.share("model", reference)
        metrics |= {} if share is None else {f"{reference}_share": share}
    return metrics


def overall(sums: Agreement) -> dict[str, float]:
    """`entries` (numbers compared) and FIGURES, over all features."""
    total = sums.total()
    return {
        "entries": int(total.count),
        "mse": float(total.mse()),
        "pearson": float(total.pearson()),
        "r2": float(total.r2()),
        "r2_within": float(sums.r2_within()),
    }


def assessment_tables(found: Measurements) -> dict[str, Table]:
    """`r2` and `r2_within` for people (a row a predictor, a column a mask ratio), the others for tools."""
    return {
        "r2": _wide(found, "r2"),
        "r2_within": _wide(found, "r2_within") | _shares(found),
        "by_ratio": _columns(
            {"predictor": name, "mask_ratio": ratio, **overall(measured.whole)}
            for name, by_ratio in found.of.items()
            for ratio, measured in by_ratio.items()
        ),
        "by_motif": _columns(row for name in found.of for row in _motif_rows(found, name)),
        "by_chromosome": _columns(
            {"predictor": name, "chromosome": chromosome, **overall(sums)}
            for name, by_ratio in found.of.items()
            for chromosome, sums in by_ratio[MAIN_RATIO].by_chromosome.items()
        ),
    }


def motif_r2(found: Measurements, predictor: str) -> np.ndarray:
    """R^2 of each feature against its own mean at MAIN_RATIO, (F,)."""
    return found.of[predictor][MAIN_RATIO].whole.r2().cpu().numpy()


def _motif_rows(found: Measurements, name: str) -> Iterable[dict[str, object]]:
    sums = found.of[name][MAIN_RATIO].whole
    values = [each.tolist() for each in (sums.count.long(), sums.mse(), sums.pearson(), sums.r2())]
    for motif, entries, mse, pearson, r2 in zip(found.features, *values, strict=True):
        yield {"predictor": name, "motif": motif, "entries": entries, "mse": mse, "pearson": pearson, "r2": r2}


def _wide(found: Measurements, figure: str) -> Table:
    columns = {"predictor": np.array(list(found.of))}
    for ratio in RATIOS:
        values = [overall(by_ratio[ratio].whole)[figure] for by_ratio in found.of.values()]
        columns[f"masked {ratio:.0%}"] = np.array(values)
    return columns


def _shares(found: Measurements) -> Table:
    """Every predictor's share of a reference's R^2 within features at MAIN_RATIO."""
    shares: Table = {}
    for reference in found.references:
        values = [found.share(name, reference) for name in found.of]
        if None not in values:
            shares[f"share of {reference} at {MAIN_RATIO:.0%}"] = np.array(values)
    return shares


def _columns(rows: Iterable[Mapping[str, object]]) -> Table:
    listed = list(rows)
    return {name: np.array([row[name] for row in listed]) for name in listed[0]}
