"""The speed shown is the latest stretch's; the time left is told from the median of the recent
ones, and pauses.
"""

import pytest

from ditlab.training.timing import RECENT, ThroughputMeter


class Clock:
    """Seconds that a test lets pass."""

    now = 100.0

    def __call__(self):
        return self.now


def steps(meter, clock, num, seconds):
    for _ in range(num):
        clock.now += seconds
        meter.count_step()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    return ThroughputMeter(10, clock)


def test_slow_steps_now_and_then_do_not_change_the_time_left(meter, clock):
    for _ in range(8):
        steps(meter, clock, 4, 2.0)
        steps(meter, clock, 1, 60.0)
        assert meter.seconds_per_sample == pytest.approx(0.2)
        assert meter.seconds_left(100, {}) == pytest.approx(200.0)
    assert meter.samples_per_second == pytest.approx(10 / 60)


def test_a_change_that_lasts_is_believed(meter, clock):
    steps(meter, clock, RECENT, 2.0)
    steps(meter, clock, RECENT // 2 + 1, 8.0)
    assert meter.seconds_per_sample == pytest.approx(0.8)


def test_the_first_stretch_counts_whole(meter, clock):
    steps(meter, clock, 1, 4.0)
    assert meter.seconds_per_sample == pytest.approx(0.4)


def test_evaluations_and_saves_belong_to_the_time_left_as_far_as_they_are_known(meter, clock):
    for seconds in (90.0, 30.0):  # the first one also warms up
        with meter.paused("evaluation"):
            clock.now += seconds
    with meter.paused():
        clock.now += 1000.0
    steps(meter, clock, 3, 2.0)
    assert meter.samples_per_second == pytest.approx(5.0)
    assert meter.seconds_left(10, {"evaluation": 3, "checkpoint": 2}) == pytest.approx(20 + 3 * 30)
