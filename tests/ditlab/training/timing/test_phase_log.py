"""Metrics in which a run logs where its time went."""

import pytest

from ditlab.engine.phase_clock import PHASES
from ditlab.training.timing import COUNTED_AFTER, INTERVAL, StepWork
from support.trainings.timings import phase_log
from support.trainings.workers import tiny, train_here


def test_a_point_is_the_mean_over_the_steps_since_the_last_and_over_the_workers():
    log, _, _ = phase_log(world_size=2)
    num = len(PHASES)
    records = []
    for worker, seconds in enumerate((1, 3)):
        phases = [seconds * 2_000_000_000 * (place + 1) for place in range(num)]
        records.append([*phases, 2, 100 + worker])
    log.merge(2, records)
    found = log.point()
    assert {name: found[f"time/{name}"] for name in PHASES} == {
        name: 2.0 * (at + 1) for at, name in enumerate(PHASES)
    }
    assert (found["time/steps"], found["perf/memory"]) == (2.0, 101.0)
    assert found["time/slowest"] == pytest.approx(3.0)
    assert log.point() == {}  # nothing new
    assert log.totals.sum(0).tolist() == [8.0 * (at + 1) for at in range(num)]


def test_utilisation_is_the_operations_over_those_of_matrix_products_in_the_time_of_a_step():
    """10 steps of 0.25 s, 50 GFLOP each at 400 GFLOP/s: 0.5, and 0.6 with 10 GFLOP that are
    computed again.
    """
    work = StepWork(model=50e9, hardware=60e9, rate=400e9)
    log, recorder, tick = phase_log(measure=lambda *_: work, batch={"size": 32})

    def steps(num):
        for _ in range(num):
            for name in ("forward", "backward"):
                with log.clock.phase(name):
                    tick(0.125)
            with log.clock.phase("evaluation"):
                tick(3.0)  # between steps: not the step's
            log.clock.end_step()
            log.read()

    steps(4)
    assert "perf/mfu" not in log.point()  # too short a training yet
    steps(10)
    found = log.point()
    assert found["perf/mfu"] == pytest.approx(0.5) and found["perf/hfu"] == pytest.approx(0.6)
    assert (
        found["perf/samples_per_second"] == pytest.approx(128.0)
        and "perf/tokens_per_second" not in found
    )
    assert found["time/evaluation"] == 3.0 and not recorder.warnings
    assert 4 * 0.25 < COUNTED_AFTER < 14 * 0.25


def test_a_month_of_steps_has_no_more_points_than_a_journal_bears():
    """A point is due after a second at first, and after four minutes in a run of a month."""
    log, _, tick = phase_log()
    tick(0.5 * INTERVAL)
    assert not log.is_due()
    tick(0.5 * INTERVAL)
    assert log.is_due()
    month, passed = 30 * 86400.0, 0.0
    tick(month)
    log.clock.end_step()
    log.read()
    log.point()
    for age in (100.0, 250.0, 270.0):
        tick(age - passed)
        passed = age
        assert log.is_due() == (age > month * 1e-4), age


def test_tokens_are_counted_for_text_alone():
    model = {"family": "dlm", "length": 16, "vocabulary": 8, "width": 16, "num_heads": 2}
    log, _, tick = phase_log(model=model, batch={"size": 6})
    with log.clock.phase("forward"):
        tick(0.5)
    log.clock.end_step()
    log.read()
    found = log.point()
    assert found["perf/samples_per_second"] == 12.0 and found["perf/tokens_per_second"] == 192.0


def test_short_steps_are_logged_once_a_second_and_the_rest_at_the_end(home, tmp_path):
    """Points of a real run hold every step."""
    experiment = tiny(training__steps=12, evaluation__every=6, evaluation__samples=0)
    outcome, recorder = train_here(experiment, home, tmp_path / "run")
    points = {step: values for step, values in recorder.values.items() if "time/steps" in values}
    assert max(points) == 12 and sum(values["time/steps"] for values in points.values()) == 12
    for name in ("data", "forward", "backward", "update", "evaluation", "checkpoint"):
        assert max(each[f"time/{name}"] for each in points.values()) > 0, name
    assert outcome.metrics["time/forward"] == points[12]["time/forward"]
    assert all("train/loss" in recorder.values[step] for step in range(1, 13)) and INTERVAL == 1.0
