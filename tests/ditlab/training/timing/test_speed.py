"""The speed shown is the latest stretch's; the time left is told from an average that one slow step hardly moves."""

import pytest

from ditlab.training.timing import TIME_CONSTANT, ThroughputMeter


class Clock:
    """Seconds that a test lets pass."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_slow_step_hardly_changes_the_time_left():
    clock = Clock()
    meter = ThroughputMeter(10, clock)
    for _ in range(40):
        clock.now += 2.0
        meter.count_step()
    assert meter.samples_per_second == pytest.approx(5.0) and meter.seconds_per_sample == pytest.approx(0.2)
    clock.now += 6.0
    meter.count_step()
    assert meter.samples_per_second == pytest.approx(10 / 6)
    assert 0.2 < meter.seconds_per_sample < 0.3


def test_a_change_that_lasts_is_believed():
    clock = Clock()
    meter = ThroughputMeter(10, clock)
    for seconds in (2.0, 8.0):
        for _ in range(int(5 * TIME_CONSTANT / seconds)):
            clock.now += seconds
            meter.count_step()
    assert meter.seconds_per_sample == pytest.approx(0.8, rel=0.02)


def test_the_first_stretch_counts_whole():
    clock = Clock()
    meter = ThroughputMeter(10, clock)
    clock.now += 4.0
    meter.count_step()
    assert meter.seconds_per_sample == pytest.approx(0.4)
