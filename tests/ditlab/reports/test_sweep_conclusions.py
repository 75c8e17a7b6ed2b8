"""Conclusions of a sweep hold at planted effects, and are silent where there is none."""

import numpy as np
import pytest

from ditlab.reports.sweep_axes import importance
from ditlab.reports.sweep_records import AxisInfo, SweepSummary, Trial
from ditlab.reports.sweep_report import conclusions

AXES = [
    AxisInfo("optimizer.lr", "log"),
    AxisInfo("model.depth", "linear"),
    AxisInfo("schedule.kind", "category"),
]


def _sweep(seed, loss, num=48, search="random"):
    """Random search; a trial's metric is its loss with noise."""
    generator, trials = np.random.default_rng(seed), []
    for number in range(num):
        lr, depth = float(10 ** generator.uniform(-4, -2)), int(generator.integers(2, 6))
        kind = ["constant", "cosine"][generator.integers(2)]
        metric = loss(np.log10(lr), depth, kind) + 0.1 * float(generator.normal())
        values = dict(zip([axis.path for axis in AXES], (lr, depth, kind), strict=True))
        facts = ("finished", 100, 100, 1.0, {"eval/loss": metric})
        trials.append(Trial(number, "5eed", values, *facts, device_hours={"core": 0.5}))
    facts = (search, "none", 1.0, num, "base")
    return SweepSummary("5eed", "s", ("eval/loss",), ("min",), AXES, trials, *facts)


def test_an_axis_that_matters_is_distinguished_from_two_that_do_not():
    valley = _sweep(1, lambda lr, *_: (lr + 3) ** 2)  # which no correlation sees
    found = importance(valley)
    ratios = {path: each.spread / each.by_chance for path, each in found.items()}
    assert next(iter(ratios)) == "optimizer.lr" and ratios.pop("optimizer.lr") > 3
    assert max(ratios.values()) < 2
    text = " ".join(conclusions(valley))
    assert "Ranks are best with optimizer.lr at 0.00" in text
    assert "Along model.depth, schedule.kind ranks" in text
    assert "Cost: 24 core hours." in text and "To try next" not in text and "p = " not in text


def test_without_effects_spreads_are_those_of_chance():
    flat = [
        (each.spread, each.by_chance)
        for seed in range(200)
        for each in importance(_sweep(seed, lambda *_: 0.0)).values()
    ]
    spread, by_chance = np.mean(flat, axis=0)
    assert spread == pytest.approx(by_chance, rel=0.05)


def test_best_trials_at_the_end_of_an_axis_ask_for_a_wider_one():
    text = " ".join(conclusions(_sweep(2, lambda lr, *_: lr)))
    assert "lie at the low end of optimizer.lr (from 0.0001" in text
    (few, *_) = conclusions(_sweep(3, lambda lr, *_: lr, 5))
    assert "Which axes matter is not known: 5 trials" in few
    (guided, *_) = conclusions(_sweep(4, lambda lr, *_: lr, search="optuna"))
    assert "so spreads are a hint only" in guided
