"""Tune's schedulers as a sweep asks for them, shown by hand what trials report."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab.cluster.sweep.schedulers import make_scheduler
from ditlab.cluster.sweep.trials import PastCurve
from support.sweeps import METRIC, sweep_of

STEPS = 81
SCHEDULERS = {
    "none": {"kind": "none"},
    "asha": {"kind": "asha", "grace": 3, "reduction": 3},
    "median": {"kind": "median", "grace": 3, "min_trials": 2},
}
NOBODY = SimpleNamespace(get_live_trials=list)  # a controller that waits for no other trial


@dataclass(frozen=True)
class FakeTrial:
    trial_id: str


def scheduler_of(name, past=(), **changes):
    base = {**SCHEDULERS[name], **changes.pop("scheduler", {})}
    return make_scheduler(sweep_of(fixed={"training.steps": STEPS, "evaluation.every": 1}, scheduler=base, **changes),
                          STEPS, past)  # fmt: skip


def reports(scheduler, name, values):
    """What the scheduler says to each of a trial's reports, up to a stop."""
    trial = FakeTrial(name)
    scheduler.on_trial_add(NOBODY, trial)
    said = []
    for step, value in values.items():
        said.append(scheduler.on_trial_result(NOBODY, trial, {"step": step, METRIC: value}))
        if said[-1] == TrialScheduler.STOP:
            break
    return said


def curve(name, value, last=9, status_step=1):
    return PastCurve(name, list(range(status_step, last + 1)), [value] * (last + 1 - status_step))


PAST = [curve(f"past-{number}", float(number)) for number in range(1, 6)]


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_newcomer_is_measured_against_earlier_sessions(name):
    bad, good = dict.fromkeys(range(1, 9), 10.0), dict.fromkeys(range(1, 9), 0.5)
    said = reports(scheduler_of(name, PAST), "bad", bad)
    assert said == [TrialScheduler.CONTINUE] * 2 + [TrialScheduler.STOP]  # at the rung: its grace is kept
    assert set(reports(scheduler_of(name, PAST), "good", good)) == {TrialScheduler.CONTINUE}
    assert set(reports(scheduler_of(name), "bad", bad)) == {TrialScheduler.CONTINUE}


@pytest.mark.parametrize("name", ["asha", "median"])
def test_more_is_better_where_the_sweep_says_so(name):
    high, low = dict.fromkeys(range(1, 9), 10.0), dict.fromkeys(range(1, 9), 0.5)
    assert TrialScheduler.STOP not in reports(scheduler_of(name, PAST, mode="max"), "high", high)
    assert reports(scheduler_of(name, PAST, mode="max"), "low", low)[-1] == TrialScheduler.STOP


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of a milestone without a number
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "past",
    [[], [PastCurve("a", [], [])], [curve("a", float("nan"))], [curve("a", float("inf"))], [curve("a", 1.0, last=1)]],
    ids=["none", "empty", "nan", "infinite", "one point"],
)
def test_any_past_can_be_shown(name, past):
    assert set(reports(scheduler_of(name, past), "new", {2: 1.0, 4: 1.0})) == {TrialScheduler.CONTINUE}


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_past_whose_worst_came_last_can_be_shown(name):
    """In their own session it was the first to come so far, and nobody stopped it."""
    past = [curve("a", 1.0), curve("b", 1.0), curve("c", 1.0), curve("worst", 50.0)]
    assert reports(scheduler_of(name, past), "bad", {3: 60.0}) == [TrialScheduler.STOP]


@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_trial_that_failed_has_no_metric_and_stops_nobody_elses(name):
    scheduler = scheduler_of(name, PAST)
    failed = FakeTrial("failed")
    scheduler.on_trial_add(NOBODY, failed)
    scheduler.on_trial_result(NOBODY, failed, {"step": 4, METRIC: 1.0})
    scheduler.on_trial_complete(NOBODY, failed, {"step": 4, "ended": True, "done": True, "failed": "crash"})
    assert set(reports(scheduler, "good", {4: 0.5, 5: 0.5})) == {TrialScheduler.CONTINUE}


@pytest.mark.parametrize("brackets", [1, 3, 100])
def test_asha_takes_any_number_of_brackets(brackets):
    scheduler = scheduler_of("asha", PAST, scheduler={"brackets": brackets})
    assert reports(scheduler, "good", {STEPS: 0.5}) == [TrialScheduler.STOP]  # its last step


def test_equal_seeds_give_equal_brackets():
    def told(seed):
        scheduler = scheduler_of("asha", scheduler={"brackets": 3}, seed=seed)
        return [len(reports(scheduler, f"t{n}", dict.fromkeys(range(1, 30), n % 7))) for n in range(40)]

    assert told(1) == told(1) != told(2)
