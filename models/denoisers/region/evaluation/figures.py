"""Pictures of an assessment: R^2 by mask ratio and by feature."""

from __future__ import annotations

import numpy as np

from denoisers.figures import Curve, Figure, Lines, Text
from denoisers.region.evaluation.tables import MAIN_RATIO, RATIOS, Measurements, motif_r2, overall

NUM_NAMED = 4
"""Features named at either end."""


def assessment_figures(found: Measurements) -> dict[str, Figure]:
    return {"r2_by_mask_ratio": r2_by_mask_ratio(found), "r2_by_motif": r2_by_motif(found)}


def r2_by_mask_ratio(found: Measurements) -> Figure:
    """A curve a predictor, over all entries and within features."""
    return Figure(
        [
            Lines(_curves(found, figure), title, "share of regions masked", "R²")
            for figure, title in (
                ("r2_within", "Against each feature's own mean"),
                ("r2", "Against the mean of all entries"),
            )
        ],
        title=". ".join(filter(None, ("R² of masked regions", found.remark))),
    )


def _curves(found: Measurements, figure: str) -> list[Curve]:
    ratios = np.array(RATIOS)
    return [
        Curve(ratios, np.array([overall(by_ratio[ratio].whole)[figure] for ratio in RATIOS]), _label(name))
        for name, by_ratio in found.of.items()
    ]


def r2_by_motif(found: Measurements) -> Figure:
    """Features by the model's R^2, best first; the other predictors on the same features. The ends are named."""
    r2 = {name: motif_r2(found, name) for name in found.of}
    order = np.argsort(-r2["model"], kind="stable")
    rank = np.arange(1, len(order) + 1)
    curves = [Curve(rank, values[order], _label(name)) for name, values in r2.items()]
    title = f"{MAIN_RATIO:.0%} of the regions masked, against each feature's own mean"
    lines = Lines(curves, title, "feature, by the model's R²", "R²")
    named = [(found.features[i], r2["model"][i]) for i in order]
    best, worst = named[:NUM_NAMED], named[-NUM_NAMED:]
    passages = [
        f"{end}: {', '.join(f'{name} {value:.2f}' for name, value in features)}"
        for end, features in (("best", best), ("worst", worst))
    ]
    return Figure([lines, Text(passages, "Features by name")], title="R² by feature", columns=1)


def _label(name: str) -> str:
    return name.replace("_", " ")
