"""Where the time went: exact sums over points of any length, whatever a journal has lost."""

import json

import numpy as np
import pytest

from ditlab.cli.output import MOST_COLUMNS, time_lines
from ditlab.reports.time_summary import time_summary
from ditlab.tracking.history import Series


def series(points):
    return Series(np.array(list(points)), np.array(list(points.values()), float))


HISTORY = {
    "train/loss": series(dict.fromkeys(range(1, 11), 1.0)),
    "time/steps": series({4: 4, 10: 6}),
    "time/data": series({4: 0.0, 10: 0.0}),
    "time/forward": series({4: 1.0, 10: 2.0}),
    "time/backward": series({4: 2.0, 10: 3.0}),
    "time/evaluation": series({4: 0.0, 10: 50.0}),
    "time/slowest": series({4: 1.5, 10: 1.0}),
    "perf/mfu": series({10: 0.5}),
    "perf/hfu": series({10: 0.625}),
    "perf/samples_per_second": series({4: 10.0, 10: 6.0}),
    "perf/memory": series({4: 2.0**30, 10: 2.0**20}),
}


def test_means_are_weighed_by_the_steps_that_they_stand_for():
    found = time_summary(HISTORY, "worker 1 is slow")
    assert found.num_steps == 10
    assert found.seconds == {"forward": 16.0, "backward": 26.0, "evaluation": 300.0}
    assert found.total == 342.0
    assert found.rows()[0] == ("forward", 16.0, "4.7%", 1600.0)
    # 4 steps of 3 s and 6 of 5 s: evaluations are no part of a step's speed.
    assert found.rates == {
        "perf/mfu": 0.5,
        "perf/hfu": 0.625,
        "perf/samples_per_second": (12 * 10 + 30 * 6) / 42,
    }
    assert found.memory == 2**30 and found.slowest == pytest.approx(1.2)
    assert " · mean over these steps 7.1 samples/s a worker · " in found.sentences()[0]
    assert json.loads(json.dumps(found.to_dict()))["seconds"]["backward"] == 26.0


def test_figures_at_the_end_of_attempts_are_no_part_of_the_training():
    found = time_summary({**HISTORY, "time/figures": series({7: 5.0, 10: 8.0})})
    assert list(found.seconds)[-1] == "figures" and found.seconds["figures"] == 13.0
    assert (found.total, found.training) == (355.0, 342.0)
    assert found.rates == time_summary(HISTORY).rates
    assert any(line.split()[:2] == ["figures", "13.00"] for line in time_lines(found))


def test_the_table_has_80_columns_whatever_the_numbers():
    times = [name for name in HISTORY if name.startswith("time/")]
    huge = {name: Series(HISTORY[name].steps, HISTORY[name].values * 1e9) for name in times}
    straggler = "worker 3 on " + "node-" * 30 + " takes 2.0 times as long"
    for history in (HISTORY, HISTORY | huge):
        lines = time_lines(time_summary(history, straggler))
        assert max(map(len, lines)) <= MOST_COLUMNS, max(lines, key=len)
    text = "\n".join(time_lines(time_summary(HISTORY)))
    for part in ("10 steps", "used 50% of the rate", "62% with", "1.0 GiB"):
        assert part in text
    assert "data" not in text  # it took no time
    assert "slowest worker: 1.20 times the others' median" in text


def test_what_an_old_or_damaged_journal_lacks_costs_only_that():
    assert time_summary({"train/loss": HISTORY["train/loss"]}) is None and time_summary({}) is None
    broken = {
        **HISTORY,
        "time/forward": series({4: np.nan, 10: -3.0, 11: 7.0}),
        "perf/mfu": series({7: np.inf}),
    }
    found = time_summary(broken)
    assert found.seconds == {"backward": 26.0, "evaluation": 300.0}
    assert "perf/mfu" not in found.rates
    assert time_lines(found)
    assert time_summary({"time/steps": series({4: 0.0})}) is None
    assert time_summary({"time/steps": series({4: 4.0})}) is None
    no_times = time_summary(
        {"time/steps": series({4: np.inf, 5: 2.0}), "time/log": series({5: 1.0})}
    )
    assert no_times.num_steps == 2 and no_times.seconds == {"log": 2.0}
