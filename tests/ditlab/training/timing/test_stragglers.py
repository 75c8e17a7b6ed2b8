"""The rule that names a slow worker, and what the first worker does with it."""

import pytest

from ditlab.engine.phase_clock import PHASES
from ditlab.training.timing import FACTOR, LEAST_POINTS, slowest
from support.trainings.phases import train_with_slow_worker
from support.trainings.timings import phase_log
from support.trainings.workers import tiny


def test_the_slowest_is_compared_with_the_median_of_the_others():
    assert slowest([1.0, 3.0, 2.0]) == (1, 3.0, 1.5)


def test_the_first_worker_names_it_once_by_tag_and_warning():
    """Worker 2 of 4 takes half a second longer a step than the others; so does worker 1 later."""
    log, recorder, _ = phase_log(world_size=4)

    def rows(slow, seconds):
        numbers = []
        for worker in range(4):
            phases = dict.fromkeys(PHASES, 10_000_000)
            phases["backward"] = 500_000_000 + (worker == slow) * round(seconds * 1e9)
            # waiting for it is no work of theirs
            phases["reduce"] = (worker != slow) * round(seconds * 1e9)
            numbers.append([*phases.values(), 1, 0])
        return numbers

    def points(num, slow, seconds=0.5):
        for _ in range(num):
            log.merge(1, rows(slow, seconds))
            ratio = log.point()["time/slowest"]
        return ratio

    points(LEAST_POINTS - 1, 2)
    points(1, 2, 0.0)
    points(LEAST_POINTS - 1, 2)
    assert not recorder.tagged
    assert points(20, 2) == pytest.approx(1.01 / 0.51)
    text = recorder.tagged["ditlab.straggler"]
    assert text.startswith("worker 2 takes 2.0 times as long")
    assert len(recorder.warnings) == 1 and text in recorder.warnings[0]
    points(LEAST_POINTS, 1)
    assert recorder.tagged["ditlab.straggler"].startswith("worker 1 ")
    assert len(recorder.warnings) == 2


@pytest.mark.slow
def test_a_slowed_worker_of_a_real_run_is_named_and_the_losses_are_the_same(home, tmp_path):
    """The second of two workers sleeps in every pass; the run's points show it, and the first one
    waits in `reduce`.
    """
    experiment = tiny(training__steps=20, resources__workers=2)
    slow, even = (
        train_with_slow_worker(experiment, home, tmp_path / str(time), time) for time in (0.4, 0.0)
    )
    assert slow.tagged["ditlab.straggler"].startswith("worker 1 takes ")
    assert "ditlab.straggler" not in even.tagged
    assert any("worker 1 takes" in each for each in slow.warnings)
    last = slow.values[20]
    # the mean of 0.4 s and none
    assert last["time/slowest"] > FACTOR and last["time/reduce"] > 0.15
    for step in range(1, 21):
        assert slow.values[step]["train/loss"] == even.values[step]["train/loss"], step
