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
        title=". ".join(filter(None, ("R² of masked regions", measurements.remark))),
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
    others = ", ".join(_label(name) for name in measurements.by_predictor if name != "model")
    alt = (
        f"Curves of R² by feature with {MAIN_RATIO:.0%} of the regions masked, of the model and, on the same features, "
        f"of {others}. {len(order)} features in the order of the model's R²; {'; '.join(passages)}."
    )
    return Figure([lines, Text(passages, "Features by name")], title="R² by feature", columns=1, alt=alt)


def _label(name: str) -> str:
    return name.replace("_", " ")
