"""A picture of an assessment: where the bound comes from, and how it compares."""

from __future__ import annotations

import math

import numpy as np

from denoisers.dlm.evaluation.tables import Measurements
from denoisers.figures import Curve, Figure, Lines


def assessment_figures(found: Measurements) -> dict[str, Figure]:
    """`bound`, where there is one."""
    return {"bound": draw_bound(found)} if found.has_bound else {}


def draw_bound(found: Measurements) -> Figure:
    """The loss times d sigma/dt by t, and what it adds up to: from the prior's part at t = 1 to the bound at t = 0.

    What is known exactly are level lines. Bits a byte where these are known, else nats a token.
    """
    unit, scale = "nats a token", 1.0
    if found.bytes_per_token:
        unit, scale = "bits a byte", 1 / (math.log(2) * found.bytes_per_token)
    num = len(found.losses)
    losses = {"model": found.losses}
    losses |= {name: scores.losses(found.schedule, num) for name, scores in found.known.items()}
    rest = found.summary["bound"] - found.summary["score_entropy"]
    edges = np.linspace(0, 1, num + 1)
    by_time, sums = [], []
    for name, of_parts in losses.items():
        label, each = name.replace("_", " "), scale * np.array(of_parts)
        by_time.append(Curve(np.repeat(edges, 2)[1:-1], np.repeat(num * each, 2), label))
        sums.append(Curve(edges, scale * rest + np.append(each[::-1].cumsum()[::-1], 0.0), label))
    # uniform's level is where the sum of zero scores ends
    levels = [
        Curve(np.array([0.0, 1.0]), np.full(2, scale * found.exact[name]), name) for name in ("unigram", "bigram")
    ]
    time = f"t (sigma {found.schedule.sigma_min:g} at 0, {found.schedule.sigma_max:g} at 1)"
    panels = [
        Lines(by_time, "Loss times d sigma/dt", time, f"{unit} per unit of t"),
        Lines([*sums, *levels], "Bound at t = 0, added up from t = 1", time, unit),
    ]
    exact = ", ".join(f"{name} {scale * nats:.3f}" for name, nats in found.exact.items())
    return Figure(panels, title=f"Held-out text, {unit}: model at most {scale * found.summary['bound']:.3f}, {exact}")
