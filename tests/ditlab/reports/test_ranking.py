"""Rankings agree with their definitions, spelled out naively."""

import math
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditlab.reports.sweep_records import SweepSummary, Trial, best, pareto, rank

STATUSES = ("finished", "stopped", "interrupted", "running", "failed", "waiting")
# Few values, so that ties and dominance by equality come often.
VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.5, math.nan, math.inf])


def _trial(number, status, metrics):
    return Trial(number, f"run-{number}", {}, status, 1, 1, 1.0, metrics, {})


def _summary(trials, modes):
    names = tuple("abc"[: len(modes)])
    return SweepSummary(
        "s", "s", names, modes, [], trials, "random", "none", 1.0, len(trials), "base.yaml"
    )


@st.composite
def summaries(draw, least=1, most=3):
    modes = tuple(draw(st.lists(st.sampled_from(("min", "max")), min_size=least, max_size=most)))
    names = "abc"[: len(modes)]
    numbers = draw(st.lists(st.integers(0, 50), unique=True, max_size=14))
    trials = [
        _trial(
            number,
            draw(st.sampled_from(STATUSES)),
            draw(st.dictionaries(st.sampled_from(names), VALUES)),
        )
        for number in numbers
    ]
    return _summary(trials, modes)


def _dominates(summary, one, other):
    pairs = [
        (one.metrics[name], other.metrics[name], mode)
        for name, mode in zip(summary.metrics, summary.modes, strict=True)
    ]
    no_worse = all(a <= b if mode == "min" else a >= b for a, b, mode in pairs)
    return no_worse and any(a != b for a, b, _ in pairs)


def _undominated(summary, trials):
    return [t for t in trials if not any(_dominates(summary, other, t) for other in trials)]


def _has_values(summary, trial):
    return all(math.isfinite(trial.metrics.get(name, math.nan)) for name in summary.metrics)


def _usable(summary, status="finished"):
    """Trials of a status that have a value of every metric."""
    return [t for t in summary.trials if t.status == status and _has_values(summary, t)]


def _group(summary, trial):
    if trial.status in ("failed", "waiting"):
        return 10 + STATUSES.index(trial.status)
    return STATUSES.index(trial.status) if _has_values(summary, trial) else 9


@given(summaries())
def test_every_trial_is_ranked_once_by_status_and_the_best_has_not_failed(
    summary,
):
    ranked = rank(summary)
    assert sorted(trial.number for trial in ranked) == sorted(
        trial.number for trial in summary.trials
    )
    groups = [_group(summary, trial) for trial in ranked]
    assert groups == sorted(groups)
    candidates = [t for status in STATUSES[:4] for t in _usable(summary, status)]
    first = best(summary)
    assert (first is None) == (not candidates)
    assert first is None or (first is ranked[0] and first in candidates)


@given(summaries(least=1, most=1))
def test_one_metric_ranks_by_value_then_by_number_and_its_front_is_the_best_finished_trial(
    summary,
):
    sign = 1 if summary.modes[0] == "min" else -1
    for before, after in pairwise(rank(summary)):
        if _group(summary, before) == _group(summary, after):
            known = _has_values(summary, before) and before.status in STATUSES[:4]
            keys = [
                (sign * trial.metrics["a"] if known else 0, trial.number)
                for trial in (before, after)
            ]
            assert keys[0] < keys[1]
    done = _usable(summary)
    pick = min if summary.modes[0] == "min" else max
    assert len(pareto(summary)) == min(1, len(done))
    if done:
        assert pareto(summary)[0].metrics["a"] == pick(trial.metrics["a"] for trial in done)
        assert best(summary) is pareto(summary)[0]


@given(summaries(least=2))
def test_several_metrics_rank_by_front_which_no_finished_trial_dominates(
    summary,
):
    sign = 1 if summary.modes[0] == "min" else -1
    ranked = rank(summary)
    for status in STATUSES[:4]:
        left = _usable(summary, status)
        expected = []
        while left:
            front = _undominated(summary, left)
            front.sort(key=lambda trial: (sign * trial.metrics["a"], trial.number))
            expected += [trial.number for trial in front]
            left = [trial for trial in left if trial not in front]
        members = _usable(replace(summary, trials=ranked), status)
        assert [trial.number for trial in members] == expected
    done = _usable(summary)
    undominated = {trial.number for trial in _undominated(summary, done)}
    leaders = [trial.number for trial in pareto(summary)]
    assert leaders == [trial.number for trial in ranked if trial.number in undominated]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("sweep_records", "numpy torch matplotlib sklearn"),
        ("sweep_report", "matplotlib.pyplot sklearn torch"),
    ],
)
def test_nothing_heavy_is_imported_early(module, heavy):
    code = f"import sys, ditlab.reports.{module}; sys.exit(not {{*{heavy.split()}}}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
