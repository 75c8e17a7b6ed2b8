"""The rule that names a slow worker, and what the first worker does with it."""

import pytest

from ditlab.engine.phase_clock import PHASES
from ditlab.training.timing import FACTOR, LEAST_LOSS, LEAST_STEPS, SlowStretch, follow_slowest, slowest
from support.trainings.phases import train_with_slow_worker
from support.trainings.timings import phase_log
from support.trainings.workers import tiny

SLOW = [1.0, 1.0, 2.0, 1.0]


def stretch_after(*steps: list[float]) -> SlowStretch | None:
    """The stretch after steps, one at a time."""
    stretch = None
    for work in steps:
        stretch = follow_slowest(stretch, work, 1)
    return stretch


def test_a_worker_is_named_after_enough_steps_in_a_row_that_cost_enough():
    for num in range(1, 2 * LEAST_STEPS):
        found = stretch_after(*[SLOW] * num)
        assert found == SlowStretch(2, num, 2.0 * num, float(num)) and found.is_straggler == (num >= LEAST_STEPS)
    short = [[seconds * 1e-3 for seconds in SLOW]]
    costly = round(LEAST_LOSS / 1e-3)
    assert not stretch_after(*short * (costly // 2)).is_straggler and stretch_after(*short * (costly + 1)).is_straggler


def test_a_step_without_it_or_with_another_one_begins_anew():
    even = [1.0, 1.0, FACTOR, 1.0]
    assert stretch_after(*[SLOW] * 9, even) is None and stretch_after(*[SLOW] * 9, even, SLOW).num_steps == 1
    assert stretch_after(*[SLOW] * 9, [9.0, 1.0, 2.0, 1.0]) == SlowStretch(0, 1, 9.0, 1.0)
    assert stretch_after([5.0]) is None  # a worker alone has nobody to be slower than


def test_of_two_workers_the_slow_one_is_compared_with_the_other():
    assert stretch_after(*[[1.0, 1.6]] * LEAST_STEPS) == SlowStretch(1, 5, pytest.approx(8.0), 5.0)
    assert slowest([1.0, 3.0, 2.0]) == (1, 3.0, 1.5)


def test_the_first_worker_names_it_once_by_tag_and_warning():
    """Worker 2 of 4 takes half a second longer a step than the others; so does worker 1 later."""
    log, recorder, _ = phase_log(world_size=4)

    def rows(slow: int, seconds: float) -> list[int]:
        numbers = []
        for worker in range(4):
            phases = dict.fromkeys(PHASES, 10_000_000)
            phases["backward"] = 500_000_000 + (worker == slow) * round(seconds * 1e9)
            phases["reduce"] = (worker != slow) * round(seconds * 1e9)  # waiting for it is no work of theirs
            numbers.append([*phases.values(), 1, 0])
        return numbers

    for _ in range(LEAST_STEPS - 1):
        log.merge(1, rows(2, 0.5))
    assert not recorder.tagged
    for _ in range(20):
        log.merge(1, rows(2, 0.5))
    text = recorder.tagged["ditlab.straggler"]
    assert text.startswith("worker 2 takes 2.0 times as long") and f"for {LEAST_STEPS} steps in a row" in text
    assert len(recorder.warnings) == 1 and text in recorder.warnings[0]
    assert log.point()["time/slowest"] == pytest.approx(1.01 / 0.51)
    for _ in range(LEAST_STEPS):
        log.merge(1, rows(1, 0.5))
    assert recorder.tagged["ditlab.straggler"].startswith("worker 1 ") and len(recorder.warnings) == 2


@pytest.mark.slow
def test_a_slowed_worker_of_a_real_run_is_named_and_the_losses_are_the_same(home, tmp_path):
    """The second of two workers sleeps in every pass; the run's points show it, and the first one waits in `reduce`."""
    experiment = tiny(training__steps=12, resources={"workers": 2})
    slow, even = (train_with_slow_worker(experiment, home, tmp_path / str(time), time) for time in (0.4, 0.0))
    assert slow.tagged["ditlab.straggler"].startswith("worker 1 takes ") and "ditlab.straggler" not in even.tagged
    assert any("worker 1 takes" in each for each in slow.warnings)
    last = slow.values[12]
    assert last["time/slowest"] > FACTOR and last["time/reduce"] > 0.15  # the mean of 0.4 s and none
    losses = [{step: values["train/loss"] for step, values in run.values.items() if "train/loss" in values}
              for run in (slow, even)]  # fmt: skip
    assert losses[0] == losses[1] and len(losses[0]) == 12
