"""Configurations of a sweep with several seeds: means over seeds, the ranking, and whether the best
one is significantly different.
"""

import math
from dataclasses import replace

import pytest

from ditlab.reports.sweep_differences import differences_to_best, not_significantly_different
from ditlab.reports.sweep_records import (
    AxisInfo,
    MetricCurve,
    SweepSummary,
    Trial,
    best,
    configurations_of,
    rank,
)
from ditlab.reports.sweep_report import summary_text

METRIC = "eval/velocity"
SEEDS = (0.3, -0.1, 0.2)  # shared by all configurations


def run(configuration, seed, value, status="finished", **axes):
    measured = {}
    if value is not None:
        curve = MetricCurve([2, 4], [value + 1, value])
        measured = {"metrics": {METRIC: value}, "curves": {METRIC: curve}}
    place = {"configuration": configuration, "seed": seed}
    number, values = 100 * seed + configuration, axes or {"lr": configuration}
    return Trial(number, f"run-{number}", values, status, 4, 4, **measured, **place)


def summary_of(runs, seeds=3, unshared=(), axis="lr"):
    axes, found = [AxisInfo(axis, "linear")], configurations_of(runs, [METRIC])
    facts = ("grid", "none", 1.0, len(runs), "base", seeds, unshared)
    return SweepSummary("id", "rates", (METRIC,), ("min",), axes, found, *facts)


def block(configuration, offset, noise=(0.0, 0.01, -0.01), **axes):
    return [
        run(configuration, seed, 1 + shared + offset + own, **axes)
        for seed, (shared, own) in enumerate(zip(SEEDS, noise, strict=True))
    ]


def test_configurations_are_ranked_by_means_and_compared_by_pairs():
    # Values of seeds scatter by 0.2, those of pairs by 0.01: an offset of 0.1 shows in pairs alone.
    summary = summary_of([*block(0, 0.1), *block(1, 0.0, (0.01, 0.0, 0.0)), *block(2, 0.2)])
    assert [configuration.number for configuration in rank(summary)] == [1, 0, 2]
    first = best(summary)
    assert first.metrics[METRIC] == pytest.approx(1 + sum(SEEDS) / 3 + 0.01 / 3)
    assert first.run_id == "run-1"
    assert list(first.curves[METRIC].values)[-1] == pytest.approx(first.metrics[METRIC])
    differences = differences_to_best(summary)
    assert [each.interval.num for each in differences] == [3, 3]
    assert not_significantly_different(differences) == []
    text = summary_text(summary, {})
    assert "Configuration 1 is the best of the 3 configurations" in text
    assert "Configuration 1 before configuration 0 by 0.097" in text and "3 pairs" in text


def test_configurations_that_share_no_draws_are_compared_by_means():
    runs = [*block(0, 0.1, **{"batch.size": 8}), *block(1, 0.0, **{"batch.size": 16})]
    summary = summary_of(runs, unshared=["batch.size"], axis="batch.size")
    (difference,) = differences_to_best(summary)
    assert difference.interval.num_other == 3 and not_significantly_different([difference]) == [0]
    text = summary_text(summary, {})
    claim = "has the lowest mean of the 2 configurations, not significantly different from "
    assert f"{claim}configuration 0" in text and "3 and 3 seeds, unpaired" in text


def test_a_configuration_with_fewer_seeds_is_said_and_ranked_behind():
    lost = [run(0, 0, 0.5), run(0, 1, None, "failed"), run(0, 2, 0.5)]
    summary = summary_of([*lost, *block(1, 0.0)])
    assert [configuration.number for configuration in rank(summary)] == [1, 0]
    said = "Configurations with values of fewer seeds than others are ranked behind those: 0."
    assert said in summary_text(summary, {})


def test_two_pairs_are_stated_with_their_wide_interval():
    summary = summary_of([*block(0, 0.1)[:2], *block(1, 0.0)[:2]], seeds=2)
    (difference,) = differences_to_best(summary)
    assert difference.interval.num == 2 and math.isfinite(difference.interval.half_width)
    one = summary_of([*block(0, 0.1)[:1], *block(1, 0.0)[:1]], seeds=2)
    of_one = not_significantly_different(differences_to_best(one))
    assert of_one == [0], "a single seed tells nothing"


def test_a_pair_far_from_the_others_is_said_under_the_interval():
    seeds = range(6)
    runs = [run(0, seed, 1 + 0.01 * seed) for seed in seeds]
    runs += [run(1, seed, 1.1 + 0.012 * seed + (seed == 4)) for seed in seeds]
    summary = summary_of(runs, seeds=6)
    (difference,) = differences_to_best(summary)
    assert difference.to_dict()["far_seeds"] == [4]
    said = "The pair of seed 4 is far from the others, and the interval depends on it"
    assert said in summary_text(summary, {})


def test_runs_at_different_steps_have_no_difference():
    runs = [replace(each, status="running", step=1 + each.seed) for each in block(0, 0.0)]
    runs += [replace(each, status="running", step=2) for each in block(1, 0.1)]
    assert differences_to_best(summary_of(runs)) == []
    assert "has the lowest mean of the 2 configurations" in summary_text(summary_of(runs), {})
