"""Schedulers of a sweep, with trials whose reports are made by hand."""

from dataclasses import dataclass

import pytest
from ray.tune.schedulers import TrialScheduler

from ditlab import parts
from ditlab.spec.sweep import Sweep
from ditlab.spec.sweep_space import check_sweep
from ditlab.sweeps.memory import PastTrial, TrialEvaluation
from ditlab.sweeps.search import make_scheduler
from support.damage import refused
from support.sweeps import METRIC, NO_TRIALS, FakeTrial, sweep_of

STEPS = 81
SCHEDULERS = {
    "none": {"kind": "none"},
    "asha": {"kind": "asha", "grace": 3, "reduction": 3},
    "median": {"kind": "median", "grace": 3, "min_trials": 2},
}


STOPPING = pytest.mark.parametrize("name", ["asha", "median"])


@dataclass
class Scheduled:
    """A scheduler, and the numbers of the trials that it has stopped."""

    scheduler: TrialScheduler
    stopped: list[int]

    def add(self, number):
        trial = FakeTrial(number)
        self.scheduler.on_trial_add(NO_TRIALS, trial)
        return trial

    def stop_step(self, number, values):
        """Step at which a trial that reports `values` is stopped; None if it is not."""
        trial, before, step = self.add(number), list(self.stopped), 0
        for step, value in values.items():
            # Tune would kill the process of a trial that it stops itself.
            decision = self.scheduler.on_trial_result(
                NO_TRIALS, trial, {"step": step, METRIC: value}
            )
            assert decision == TrialScheduler.CONTINUE
            if self.stopped != before:
                assert self.stopped == [*before, number]
                break
        is_stopped = self.stopped != before
        status = "stopped" if is_stopped else "finished"
        end = {"step": step, METRIC: values[step], "done": True, "status": status}
        self.scheduler.on_trial_complete(NO_TRIALS, trial, end)
        assert self.stopped == before + [number] * is_stopped
        return step if is_stopped else None


def scheduler_of(name, past=(), mode="min"):
    fixed = {"training.steps": STEPS, "evaluation.every": 1}
    sweep = sweep_of(fixed=fixed, scheduler=SCHEDULERS[name], mode=mode)
    stopped = []
    scheduler = make_scheduler(sweep, STEPS, past, stopped.append)
    assert stopped == []  # trials of an earlier session have ended
    return Scheduled(scheduler, stopped)


def curve(name, value, last=9):
    """A finished trial of an earlier session with one value at all of its steps."""
    points = [TrialEvaluation(step, value, 0) for step in range(1, last + 1)]
    return [PastTrial(0, name, {}, "finished", points, last, last)]


PAST = []
for number in range(1, 6):
    PAST += curve(f"past-{number}", float(number))


@STOPPING
def test_new_trial_is_compared_with_those_of_earlier_sessions(name):
    high, low = dict.fromkeys(range(1, 9), 10.0), dict.fromkeys(range(1, 9), 0.5)
    for mode, bad, good in (("min", high, low), ("max", low, high)):
        # at the rung: its grace is kept
        assert scheduler_of(name, PAST, mode=mode).stop_step(7, bad) == 3
        assert scheduler_of(name, PAST, mode=mode).stop_step(7, good) is None
    assert scheduler_of(name).stop_step(7, high) is None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of a milestone without a number
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(
    "past",
    [
        [],
        curve("a", 1.0, last=0),
        curve("a", float("nan")),
        curve("a", float("inf")),
        curve("a", 1.0, last=1),
    ],
    ids=["none", "empty", "nan", "infinite", "one point"],
)
def test_any_past_can_be_replayed(name, past):
    assert scheduler_of(name, past).stop_step(7, {2: 1.0, 4: 1.0}) is None


@STOPPING
def test_past_whose_worst_trial_comes_last_can_be_replayed(name):
    """In its own session that trial was the first to reach these steps, so it was not stopped."""
    past = curve("a", 1.0) + curve("b", 1.0) + curve("c", 1.0) + curve("worst", 50.0)
    assert scheduler_of(name, past).stop_step(7, {3: 60.0}) == 3


GAP = """
from typing import Literal
from ditlab.spec.sweep import Scheduler

class Gap(Scheduler):
    kind: Literal["gap"] = "gap"
    most: float = 1.0

    def stops(self, trial, others):
        return bool(others) and trial.values[-1] > min(min(other.values) for other in others) + self.most
"""


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_kind_of_a_package_stops_trials(tmp_path, monkeypatch, mode):
    (tmp_path / "gap_scheduler.py").write_text(GAP)
    monkeypatch.syspath_prepend(tmp_path)
    own = parts.Parts(schedulers={"gap": "gap_scheduler:Gap"})
    monkeypatch.setattr(parts, "all_parts", lambda: [own])
    sign = -1.0 if mode == "max" else 1.0
    points = [TrialEvaluation(3, sign * 5.0, 1), TrialEvaluation(6, sign * 2.0, 2)]
    past = [PastTrial(9, "run-9", {}, "finished", points, 6, 6)]
    sweep = sweep_of(scheduler={"kind": "gap", "grace": 4, "most": 2}, mode=mode)
    assert sweep.to_dict()["scheduler"] == {"kind": "gap", "grace": 4, "most": 2.0}
    assert Sweep.model_validate(sweep.to_dict()) == sweep
    stopped = []
    scheduled = Scheduled(make_scheduler(sweep, STEPS, past, stopped.append), stopped)
    # grace, then the gap to 2.0
    assert scheduled.stop_step(0, {2: sign * 9.0, 4: sign * 4.0, 6: sign * 4.1}) == 6
    assert scheduled.stop_step(1, {2: sign * 1.0, 4: sign * 3.0, 6: sign * 3.9}) is None
    check_sweep(sweep, "x")
    monkeypatch.setattr(parts, "all_parts", list)
    with refused(r"scheduler.kind='gap' is unknown; known: asha, median, none"):
        sweep_of(scheduler={"kind": "gap"})
