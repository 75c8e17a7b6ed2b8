"""Values at different steps are named with their steps."""

import pytest

from ditlab.reports.sweep_records import (
    AxisInfo,
    MetricCurve,
    SweepSummary,
    Trial,
    steps_sentence,
    value_step,
)
from ditlab.reports.sweep_report import summary_text

METRIC = "eval/loss"


def trial(number, values_by_step, status="finished", step=None):
    curve = MetricCurve(list(values_by_step), list(values_by_step.values()))
    last = list(values_by_step)[-1]
    return Trial(
        number,
        f"run-{number}",
        {"batch.size": 2**number},
        status,
        step or last,
        960,
        metrics={METRIC: curve.values[-1]},
        curves={METRIC: curve},
    )


def summary_of(trials, metric=METRIC, mode="min"):
    axes = [AxisInfo("batch.size", "linear")]
    return SweepSummary(
        "id", "sizes", (metric,), (mode,), axes, trials, "grid", "none", 1.0, len(trials), "base"
    )


SHORT = {0: 9.0, 160: 0.5, 320: 0.31}
LONG = {0: 9.0, 160: 0.6, 320: 0.3, 640: 0.4, 960: 0.35}


def test_the_best_is_named_with_its_step_and_that_of_another():
    found = summary_of([trial(3, SHORT), trial(4, LONG)])
    sentence = "Values are of different steps: trial 3 has 0.31 at step 320, trial 4 has 0.35 at step 960. At step 320, the last at which all 2 have a value, trial 4 is the best with 0.3."
    assert steps_sentence(found) == sentence
    assert sentence in summary_text(found, {})


def test_the_higher_value_is_the_best_where_more_is_better():
    found = summary_of(
        [trial(3, {2: 0.9, 4: 0.95}), trial(4, {2: 0.8, 4: 0.7, 6: 0.9})], mode="max"
    )
    assert steps_sentence(found).endswith("have a value, trial 3 is the best with 0.95.")


def test_trials_that_are_equal_at_the_common_step_are_named_together():
    found = summary_of([trial(3, SHORT), trial(4, LONG | {320: 0.31})])
    assert steps_sentence(found).endswith("trials 3, 4 are equally good with 0.31.")


def test_trials_without_a_common_step_are_said_to_have_none():
    found = summary_of([trial(3, {0: 9.0, 5: 1.0}), trial(4, {0: 9.0, 7: 2.0})])
    assert steps_sentence(found).endswith("There is no step at which all 2 have a value.")


@pytest.mark.parametrize(
    "others",
    [
        [trial(4, {0: 9.0, 320: 0.4})],
        [trial(4, {160: 0.2}, "stopped")],  # it is ranked behind the finished ones anyway
        [],
    ],
)
def test_nothing_is_said_of_values_at_one_step(others):
    assert steps_sentence(summary_of([trial(3, SHORT), *others])) == ""


def test_a_speed_has_no_step():
    fast = Trial(0, "a", {}, "finished", 6, 6, metrics={"perf/mfu": 0.3})
    slow = Trial(1, "b", {}, "finished", 9, 9, metrics={"perf/mfu": 0.2})
    assert steps_sentence(summary_of([fast, slow], "perf/mfu", "max")) == ""


def test_the_step_is_that_of_the_value():
    """A trial that was interrupted at step 400 was evaluated last at step 320."""
    interrupted = trial(3, SHORT, "interrupted", step=400)
    assert value_step(summary_of([interrupted]), interrupted) == 320
