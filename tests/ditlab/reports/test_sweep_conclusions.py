"""Conclusions of a sweep hold at planted effects, and are silent where there is none."""

from collections.abc import Callable

import numpy as np

from ditlab.reports.sweep_axes import importance
from ditlab.reports.sweep_records import AxisInfo, MetricCurve, SweepSummary, Trial
from ditlab.reports.sweep_report import conclusions

AXES = [
    AxisInfo("optimizer.lr", "log"),
    AxisInfo("model.depth", "linear"),
    AxisInfo("schedule.kind", "category"),
]


def _sweep(
    seed: int, loss: Callable[..., float], num: int = 48, search: str = "random"
) -> SweepSummary:
    """Random search; a trial's metric falls from its final value and 1 to its final value, with
    noise early.
    """
    generator, trials = np.random.default_rng(seed), []
    for number in range(num):
        lr, depth = float(10 ** generator.uniform(-4, -2)), int(generator.integers(2, 6))
        kind = ["constant", "cosine"][generator.integers(2)]
        final = loss(np.log10(lr), depth, kind) + 0.1 * float(generator.normal())
        values = {"optimizer.lr": lr, "model.depth": depth, "schedule.kind": kind}
        curve = MetricCurve(
            [10, 25, 50, 100], [final + 0.05 * float(generator.normal()) * n for n in (3, 2, 1, 0)]
        )
        trials.append(
            Trial(
                number,
                f"{number:08x}",
                values,
                "finished",
                100,
                100,
                1.0,
                {"eval/loss": final},
                {"eval/loss": curve},
                device_hours={"core": 0.5},
            )
        )
    return SweepSummary(
        "5eed0000", "s", ("eval/loss",), ("min",), AXES, trials, search, "none", 1.0, num, "base"
    )


def test_an_axis_that_matters_is_told_from_two_that_do_not():
    valley = _sweep(0, lambda lr, *_: (lr + 3) ** 2)  # which no correlation sees
    found = importance(valley)
    ratios = {path: each.spread / each.by_chance for path, each in found.items()}
    assert (
        next(iter(ratios)) == "optimizer.lr"
        and ratios.pop("optimizer.lr") > 3
        and max(ratios.values()) < 2
    )
    text = " ".join(conclusions(valley))
    assert (
        "Ranks are best with optimizer.lr at 0.00" in text
        and "Along model.depth, schedule.kind ranks" in text
    )
    assert "Cost: 24 core hours." in text and "To try next" not in text and "p = " not in text


def test_without_effects_spreads_are_those_of_chance():
    flat = [
        each for seed in range(200) for each in importance(_sweep(seed, lambda *_: 0.0)).values()
    ]
    assert (
        0.95
        < np.mean([each.spread for each in flat]) / np.mean([each.by_chance for each in flat])
        < 1.05
    )


def test_best_trials_at_the_end_of_an_axis_ask_for_a_wider_one():
    text = " ".join(conclusions(_sweep(2, lambda lr, *_: lr)))
    assert "lie at the low end of optimizer.lr (from 0.0001" in text
    assert (
        "Which axes matter is not known: 5 trials"
        in conclusions(_sweep(3, lambda lr, *_: lr, 5))[0]
    )
    assert (
        "so spreads are a hint only"
        in conclusions(_sweep(4, lambda lr, *_: lr, search="optuna"))[0]
    )
