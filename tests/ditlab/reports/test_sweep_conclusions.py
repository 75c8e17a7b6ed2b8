"""Conclusions of a sweep hold at planted effects, and are silent where there is none."""

from collections.abc import Callable

import numpy as np

from ditlab.reports.sweep_conclusions import axis_effects, conclusions, interactions
from ditlab.reports.sweep_records import AxisInfo, MetricCurve, SweepSummary, Trial

AXES = [AxisInfo("optimizer.lr", "log"), AxisInfo("model.depth", "linear"), AxisInfo("schedule.kind", "category")]


def _sweep(seed: int, loss: Callable[..., float], num: int = 48, search: str = "random") -> SweepSummary:
    """Random search; a trial's metric falls from its final value and 1 to its final value, with noise early."""
    generator, trials = np.random.default_rng(seed), []
    for number in range(num):
        lr, depth = float(10 ** generator.uniform(-4, -2)), int(generator.integers(2, 6))
        kind = ["constant", "cosine"][generator.integers(2)]
        final = loss(np.log10(lr), depth, kind) + 0.1 * float(generator.normal())
        values = {"optimizer.lr": lr, "model.depth": depth, "schedule.kind": kind}
        curve = MetricCurve([10, 25, 50, 100], [final + 0.05 * float(generator.normal()) * n for n in (3, 2, 1, 0)])
        trials.append(Trial(number, f"{number:08x}", values, "finished", 100, 100, 1.0, {"eval/loss": final},
                            {"eval/loss": curve}, device_hours={"core": 0.5}))  # fmt: skip
    return SweepSummary("5eed0000", "s", ("eval/loss",), ("min",), AXES, trials, search, "none", 1.0, num, "base")


def test_an_axis_that_matters_is_told_from_two_that_do_not():
    effects = axis_effects(_sweep(0, lambda lr, *_: (lr + 3) ** 2))  # a valley, which no correlation sees
    assert effects["optimizer.lr"] < 1e-3 and min(effects["model.depth"], effects["schedule.kind"]) > 0.05
    text = " ".join(conclusions(_sweep(0, lambda lr, *_: (lr + 3) ** 2)))
    assert "One axis matters: optimizer.lr" in text and "No effect of model.depth, schedule.kind" in text
    assert "Cost: 24 core hours." in text and "To try next" not in text


def test_without_effects_axes_and_interactions_are_named_as_seldom_as_said():
    flat = [_sweep(seed, lambda *_: 0.0) for seed in range(200)]
    assert sum(min(axis_effects(each).values()) <= 0.05 for each in flat) <= 18  # 10 expected; 18 or more: 1.3 %
    assert sum(min(interactions(each).values(), default=1.0) <= 0.05 for each in flat) <= 18


def test_an_interaction_is_found_where_the_best_value_depends_on_another_axis():
    crossed = _sweep(1, lambda lr, depth, kind: (1 if kind == "cosine" else -1) * (lr + 3), 96)
    found = interactions(crossed)
    assert found["optimizer.lr", "schedule.kind"] < 1e-3 and found["optimizer.lr", "model.depth"] > 0.05
    assert any("The best optimizer.lr depends on schedule.kind" in each for each in conclusions(crossed))


def test_best_trials_at_the_end_of_an_axis_ask_for_a_wider_one_and_early_ranks_are_compared():
    text = " ".join(conclusions(_sweep(2, lambda lr, *_: lr)))
    assert "lie at the low end of optimizer.lr (from 0.0001" in text
    assert "of 48 finished trials" in text and "at 50 % of the steps 0.9" in text
    assert "Which axes matter is not known: 5 trials" in conclusions(_sweep(3, lambda lr, *_: lr, 5))[0]
    assert "so p is a hint only" in conclusions(_sweep(4, lambda lr, *_: lr, search="optuna"))[0]
