"""Figure of an evaluation: the parts of the bound, beside those of known scores and exact likelihoods."""

from __future__ import annotations

import math

import numpy as np

from denoisers.dlm.evaluation.tables import LikelihoodMeasurements
from denoisers.figures import Curve, Figure, Lines


def evaluation_figures(measurements: LikelihoodMeasurements) -> dict[str, Figure]:
    """Draw `bound`, if there is one."""
    return {"bound": draw_bound(measurements)} if measurements.has_bound else {}


def draw_bound(measurements: LikelihoodMeasurements) -> Figure:
    """Draw the loss times d sigma/dt by t, and its integral from the prior's part at t = 1 to the bound at t = 0.

    Exact likelihoods are level lines. Units are bits a byte if the bytes of a token are known, else nats a token.
    """
    unit, scale = "nats a token", 1.0
    if measurements.bytes_per_token:
        unit, scale = "bits a byte", 1 / (math.log(2) * measurements.bytes_per_token)
    num = len(measurements.losses)
    losses = {"model": measurements.losses}
    losses |= {name: scores.losses(measurements.schedule, num) for name, scores in measurements.known.items()}
    rest = measurements.summary["bound"] - measurements.summary["score_entropy"]
    edges = np.linspace(0, 1, num + 1)
    by_time, sums = [], []
    for name, by_part in losses.items():
        label, each = name.replace("_", " "), scale * np.array(by_part)
        by_time.append(Curve(np.repeat(edges, 2)[1:-1], np.repeat(num * each, 2), label))
        sums.append(Curve(edges, scale * rest + np.append(each[::-1].cumsum()[::-1], 0.0), label))
    # uniform's level is the end of the zero scores' integral
    levels = [
        Curve(np.array([0.0, 1.0]), np.full(2, scale * measurements.exact[name]), name)
        for name in ("unigram", "bigram")
    ]
    time = f"t (sigma {measurements.schedule.sigma_min:g} at 0, {measurements.schedule.sigma_max:g} at 1)"
    panels = [
        Lines(by_time, "Loss times d sigma/dt", time, f"{unit} per unit of t"),
        Lines([*sums, *levels], "Bound at t = 0, added up from t = 1", time, unit),
    ]
    exact = ", ".join(f"{name} {scale * nats:.3f}" for name, nats in measurements.exact.items())
    title = f"Held-out text, {unit}: model at most {scale * measurements.summary['bound']:.3f}, {exact}"
    names = ", ".join(name.replace("_", " ") for name in losses)
    alt = (
        f"Two panels over the time t of the noise, for {names}: the loss "
        f"times d sigma/dt in steps, and the bound added up from t = 1 to t = 0, beside level lines of unigram and "
        f"bigram. {title}."
    )
    return Figure(panels, title=title, alt=alt)
