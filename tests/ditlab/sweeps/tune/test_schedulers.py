"""Tune's schedulers as a sweep asks for them, shown by hand what trials report."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.sweeps.trials import PastCurve
from ditlab.sweeps.tune.schedulers import make_scheduler
from support.sweeps import METRIC, sweep_of

STEPS = 81
SCHEDULERS = {
    "none": {"kind": "none"},
    "asha": {"kind": "asha", "grace": 3, "reduction": 3},
    "median": {"kind": "median", "grace": 3, "min_trials": 2},
}
NOBODY = SimpleNamespace(get_live_trials=list)  # a controller that waits for no other trial


class FakeTrial:
    """As much of Tune's trial as schedulers ask for."""

    def __init__(self, number):
        self.trial_id = f"id-{number}"
        self.config = {"trial": {"number": number, "run_id": f"run-{number}", "values": {}}}


@dataclass
class Told:
    """A scheduler, and the numbers of the trials that it has told to end."""

    scheduler: TrialScheduler
    stopped: list[int]

    def add(self, number):
        trial = FakeTrial(number)
        self.scheduler.on_trial_add(NOBODY, trial)
        return trial

    def stop_step(self, number, values):
        """The step at which a trial that reports `values` is told to end; None where it is not. It ends then."""
        trial, before, step = self.add(number), list(self.stopped), 0
        for step, value in values.items():
            # Tune would kill the process of a trial that it stops itself.
            said = self.scheduler.on_trial_result(NOBODY, trial, {"step": step, METRIC: value})
            assert said == TrialScheduler.CONTINUE
            if self.stopped != before:
                assert self.stopped == [*before, number]
                break
        is_stopped = self.stopped != before
        end = {"step": step, METRIC: values[step], "done": True, "status": "stopped" if is_stopped else "finished"}
        self.scheduler.on_trial_complete(NOBODY, trial, end)
        assert self.stopped == before + [number] * is_stopped
        return step if is_stopped else None


def scheduler_of(name, past=(), **changes):
    base = {**SCHEDULERS[name], **changes.pop("scheduler", {})}
    sweep = sweep_of(fixed={"training.steps": STEPS, "evaluation.every": 1}, scheduler=base, **changes)
    stopped = []
    scheduler = make_scheduler(sweep, STEPS, past, stopped.append)
    assert stopped == []  # trials of an earlier session have ended
    return Told(scheduler, stopped)


def curve(name, value, last=9, status_step=1):
    return PastCurve(name, list(range(status_step, last + 1)), [value] * (last + 1 - status_step))


PAST = [curve(f"past-{number}", float(number)) for number in range(1, 6)]


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_newcomer_is_measured_against_earlier_sessions(name):
    bad, good = dict.fromkeys(range(1, 9), 10.0), dict.fromkeys(range(1, 9), 0.5)
    assert scheduler_of(name, PAST).stop_step(7, bad) == 3  # at the rung: its grace is kept
    assert scheduler_of(name, PAST).stop_step(7, good) is None
    assert scheduler_of(name).stop_step(7, bad) is None


@pytest.mark.parametrize("name", ["asha", "median"])
def test_more_is_better_where_the_sweep_says_so(name):
    high, low = dict.fromkeys(range(1, 9), 10.0), dict.fromkeys(range(1, 9), 0.5)
    assert scheduler_of(name, PAST, mode="max").stop_step(7, high) is None
    assert scheduler_of(name, PAST, mode="max").stop_step(7, low) == 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of a milestone without a number
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "past",
    [[], [PastCurve("a", [], [])], [curve("a", float("nan"))], [curve("a", float("inf"))], [curve("a", 1.0, last=1)]],
    ids=["none", "empty", "nan", "infinite", "one point"],
)
def test_any_past_can_be_shown(name, past):
    assert scheduler_of(name, past).stop_step(7, {2: 1.0, 4: 1.0}) is None


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_past_whose_worst_came_last_can_be_shown(name):
    """In their own session it was the first to come so far, and nobody stopped it."""
    past = [curve("a", 1.0), curve("b", 1.0), curve("c", 1.0), curve("worst", 50.0)]
    assert scheduler_of(name, past).stop_step(7, {3: 60.0}) == 3


@pytest.mark.parametrize("name", ["asha", "median"])
def test_each_trial_is_told_by_its_own_number(name):
    told = scheduler_of(name, PAST)
    steps = [told.stop_step(number, {3: value}) for number, value in ((4, 60.0), (9, 0.5), (2, 70.0))]
    assert steps == [3, None, 3] and told.stopped == [4, 2]


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_trial_that_failed_has_no_metric_and_stops_nobody_elses(name):
    told = scheduler_of(name, PAST)
    failed = told.add(7)
    told.scheduler.on_trial_result(NOBODY, failed, {"step": 4, METRIC: 1.0})
    told.scheduler.on_trial_complete(NOBODY, failed, {"step": 4, "done": True, "status": "failed"})
    assert told.stop_step(8, {4: 0.5, 5: 0.5}) is None and told.stopped == []


@pytest.mark.parametrize("brackets", [1, 3, 100])
def test_asha_takes_any_number_of_brackets(brackets):
    told = scheduler_of("asha", PAST, scheduler={"brackets": brackets})
    assert told.stop_step(7, {STEPS: 0.5}) == STEPS  # its last step


def test_equal_seeds_give_equal_brackets():
    def told(seed):
        one = scheduler_of("asha", scheduler={"brackets": 3}, seed=seed)
        return [one.stop_step(number, dict.fromkeys(range(1, 30), number % 7)) for number in range(40)]

    assert told(1) == told(1) != told(2)
