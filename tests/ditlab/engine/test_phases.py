"""Phases of a step: they add up to its time, on the host's clock and on a device that is behind
it.
"""

import pytest

from ditlab.engine.phase_clock import PHASES, PhaseClock
from support.trainings.phases import phases_by_stage


class Device:
    """A GPU that a test lets work: its events pass when their moment has come, and nobody may wait
    for them.
    """

    def __init__(self):
        self.host = self.done = 0.0
        self.num_events = 0

    def event(self):
        self.num_events += 1
        return Event(self)


class Event:
    """An event of a `Device`."""

    def __init__(self, device):
        self._device = device

    def record(self):
        self.at = self._device.host

    def query(self):
        return self.at <= self._device.done

    def synchronize(self):
        self._device.done = max(self._device.done, self.at)

    def elapsed_time(self, end):
        assert self.query() and end.query()
        return (end.at - self.at) * 1000


def step_of(clock, tick, seconds):
    """One step of a loop: forward with a collective within it, the others, and 0.25 s between
    them.
    """
    for name in ("data", "forward", "backward", "update"):
        with clock.phase(name):
            tick(seconds[name])
            if name == "forward":
                clock.reducing(tick)(seconds["reduce"])
                tick(1.0)
    tick(0.25)
    clock.end_step()


SECONDS = {"data": 0.5, "forward": 2.0, "backward": 4.0, "update": 0.125, "reduce": 8.0}
EXPECTED = {**SECONDS, "forward": 3.0, "log": 0.25, "checkpoint": 0.0, "evaluation": 0.0}


def test_phases_of_steps_add_up_to_their_time_with_those_within_others():
    now = [100.0]

    def tick(seconds):
        now[0] += seconds

    clock = PhaseClock(lambda: now[0])
    tick(7.0)  # building the engine
    clock.restart()
    for _ in range(3):
        step_of(clock, tick, SECONDS)
    found = clock.read()
    assert found.num_steps == 3 and sum(found.seconds) == pytest.approx(3 * sum(EXPECTED.values()))
    assert dict(zip(PHASES, found.seconds, strict=True)) == pytest.approx(
        {name: 3 * seconds for name, seconds in EXPECTED.items()}
    )
    assert clock.read().num_steps == 0
    with clock.phase("evaluation"):
        clock.reducing(tick)(1.0)  # a collective of an evaluation is the evaluation's
        with clock.phase("evaluation"):
            tick(1.0)
        tick(1.0)
    tick(0.5)
    rest = clock.read_rest()
    assert (
        rest.num_steps == 0
        and rest.seconds[PHASES.index("evaluation")] == 3.0
        and sum(rest.seconds) == 3.5
    )


def test_a_step_that_failed_leaves_nothing_behind():
    now = [0.0]
    clock = PhaseClock(lambda: now[0])
    with (
        pytest.raises(ValueError, match="no memory"),
        clock.phase("forward"),
        clock.phase("reduce"),
    ):
        now[0] += 5.0
        raise ValueError("no memory")
    now[0] += 5.0
    clock.restart()
    with clock.phase("backward"):
        now[0] += 1.0
    clock.end_step()
    found = clock.read()
    assert sum(found.seconds) == found.seconds[PHASES.index("backward")] == 1.0


def test_a_device_is_read_when_it_is_there_and_never_waited_for():
    device = Device()
    clock = PhaseClock(new_event=device.event)

    def tick(seconds):
        device.host += seconds

    clock.restart()
    for _ in range(2):
        step_of(clock, tick, SECONDS)
    assert clock.read().num_steps == 0 and device.done == 0.0
    device.done = sum(EXPECTED.values())
    assert clock.read().num_steps == 1 and device.done == sum(EXPECTED.values())
    used = device.num_events
    for _ in range(20):
        step_of(clock, tick, SECONDS)
        device.done = device.host
        assert clock.read().num_steps > 0
    assert device.num_events <= 2 * used  # events are used again
    tick(2.0)
    rest = clock.read_rest()
    assert sum(rest.seconds) == 2.0 and device.done == device.host  # the end of a loop may wait


@pytest.mark.parametrize("stages", [(2,), pytest.param((0, 1, 3), marks=pytest.mark.slow)])
def test_waiting_for_a_slow_worker_is_its_peers_reduction_at_every_stage(stages):
    """The one that sleeps has it in its own passes, the other one in `reduce`; with either the sum
    is the wall time.
    """
    slept = 0.05
    for stage, (quick, slow) in phases_by_stage(stages, slept).items():
        for phases, wall in (quick, slow):
            assert sum(phases.values()) == pytest.approx(wall, rel=0.02), stage
        own = [phases["forward"] + phases["backward"] for phases, _ in (quick, slow)]
        assert own[1] > 4 * slept and own[1] - own[0] > 2 * slept, (stage, quick, slow)
        assert quick[0]["reduce"] > 2 * slept, (stage, quick, slow)
