"""Figures of an evaluation: R^2 by mask ratio and by feature."""

from __future__ import annotations

import numpy as np

from denoisers.figures import Curve, Figure, Lines, Text
from denoisers.region.evaluation.tables import MAIN_RATIO, RATIOS, ImputationMeasurements, motif_r2, overall

NUM_NAMED = 4
"""Features named at either end."""


def evaluation_figures(measurements: ImputationMeasurements) -> dict[str, Figure]:
    """Draw `r2_by_mask_ratio` and `r2_by_motif`."""
    return {"r2_by_mask_ratio": r2_by_mask_ratio(measurements), "r2_by_motif": r2_by_motif(measurements)}


def r2_by_mask_ratio(measurements: ImputationMeasurements) -> Figure:
    """Draw a curve for each predictor, over all entries and within features."""
    return Figure(
        [
            Lines(_curves(measurements, figure), title, "share of regions masked", "R²")
            for figure, title in (
                ("r2_within", "Against each feature's own mean"),
                ("r2", "Against the mean of all entries"),
            )
        ],
        title=". ".join(filter(None, ("R² of masked regions", measurements.remark))),
    )


def _curves(measurements: ImputationMeasurements, figure: str) -> list[Curve]:
    ratios = np.array(RATIOS)
    return [
        Curve(ratios, np.array([overall(by_ratio[ratio].whole)[figure] for ratio in RATIOS]), _label(name))
        for name, by_ratio in measurements.by_predictor.items()
    ]


def r2_by_motif(measurements: ImputationMeasurements) -> Figure:
    """Draw features by the model's R^2, best first, and name the ends; the other predictors on the same features."""
    r2 = {name: motif_r2(measurements, name) for name in measurements.by_predictor}
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
    return Figure([lines, Text(passages, "Features by name")], title="R² by feature", columns=1)


def _label(name: str) -> str:
    return name.replace("_", " ")
