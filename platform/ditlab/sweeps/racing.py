"""A race on Ray Tune: a searcher whose trials train runs from one rung to the next, and its rules and results.

Each of Tune's trials is one leg: it trains the run of an arm and a seed up to a rung, where the run waits with a
checkpoint and without a process. Once every leg of a look has ended, `Race.decide` says which runs train on, which arms
are dropped and which seeds are added. All of it follows from the runs' journals, so that a race that was killed, in
whichever phase, goes on to the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ray.tune.search import Searcher

from ditlab.home import Home
from ditlab.reports.sweep_records import MetricCurve, Trial
from ditlab.runs.locks import lock_run
from ditlab.spec.sweep import Race as RaceSpec
from ditlab.spec.sweep import Sweep
from ditlab.sweeps.folder import SweepFolder, find_record
from ditlab.sweeps.race import Race, RaceDecision, RaceRules, RungValue, TrialTarget
from ditlab.tracking.records import update_record
from ditlab.tracking.review import end_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.evaluation import read_by_sample

LOCK_TIMEOUT = 300.0  # seconds


def race_rungs(spec: RaceSpec, total_steps: int) -> tuple[int, ...]:
    """Return the steps at which arms are compared: `grace`, `reduction` times as many, and so on, and the last step."""
    rungs = []
    step = spec.grace
    while step < total_steps:
        rungs.append(step)
        step *= spec.reduction
    return (*rungs, total_steps)


def make_race(sweep: Sweep, num_arms: int, total_steps: int) -> Race:
    """Make the race of a sweep whose scheduler is one; arms are named by their numbers."""
    spec = sweep.scheduler
    assert isinstance(spec, RaceSpec)
    rules = RaceRules(
        rungs=race_rungs(spec, total_steps), metric=sweep.metrics[0], mode=sweep.modes[0], confidence=spec.confidence,
        min_seeds=len(sweep.first_seeds), max_seeds=sweep.num_seeds, indifference=spec.indifference,
    )  # fmt: skip
    return Race(tuple(arm_name(arm) for arm in range(num_arms)), rules)


def arm_name(arm: int) -> str:
    """Name of an arm in a race."""
    return f"arm {arm}"


def rung_values(
    sweep: Sweep, race: Race, trials: Iterable[Trial], noise: Callable[[Trial, int], float | None] = lambda *_: None
) -> Iterator[RungValue]:
    """Yield the value of each trial at each rung that it has reached; of a failed one NaN at the next rung.

    `noise` gives the standard error of a trial's value at a step over held-out samples.
    """
    seeds = sweep.seed_list
    for trial in trials:
        curve = trial.curves.get(race.rules.metric) or MetricCurve([], [])
        values = dict(zip(curve.steps, curve.values, strict=True))  # of a step that was done twice, the later
        arm, seed = arm_name(trial.arm), seeds.index(trial.seed)
        for step in race.rules.rungs:
            if step in values:
                yield RungValue(arm, seed, step, values[step], noise(trial, step))
            elif trial.status == "failed":
                yield RungValue(arm, seed, step, math.nan)
                break
            else:
                break


def race_sentences(sweep: Sweep, trials: Sequence[Trial], total_steps: int, home: Home) -> list[str]:
    """Describe the state of a race, from its runs as they are on the disk; [] for other schedulers."""
    if not isinstance(sweep.scheduler, RaceSpec) or not trials:
        return []
    race = make_race(sweep, 1 + max(trial.arm for trial in trials), total_steps)
    values = rung_values(sweep, race, trials, partial(held_out_noise, home, sweep.metrics[0]))
    return race.decide(values).describe(race.rules)


class RaceTrials(Searcher):
    """Tune's searcher of a race."""

    def __init__(
        self, sweep: Sweep, race: Race, arms: Mapping[int, Mapping[str, Any]], past: Sequence[Trial],
        plan: Callable[[int, Mapping[str, Any], int, int | None], Trial], on_decision: Callable[[RaceDecision], None],
        noise: Callable[[Trial, int], float | None],
    ) -> None:  # fmt: skip
        """`arms` has values by number, `past` all trials of the ledger with their curves. `plan` writes a new trial, by
        number, values, arm and seed, to the ledger; `on_decision` is told every decision, the first and the last too.
        """
        super().__init__(metric=None, mode=None)
        self._sweep, self._race, self._arms, self._plan = sweep, race, arms, plan
        self._on_decision, self._noise = on_decision, noise
        self._trials = {(arm_name(trial.arm), sweep.seed_list.index(trial.seed)): trial for trial in past}
        self._numbers = (number for number in range(10**9) if number not in {trial.number for trial in past})
        self._values = {self._key(value): value for value in rung_values(sweep, race, past, noise)}
        self._running: dict[str, TrialTarget] = {}
        self._waiting: list[TrialTarget] = []
        self._is_interrupted = False
        self.decision = self._decide()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Configure the next leg; None while the legs of a look still train, `FINISHED` at the end of the race."""
        if not self._waiting:
            return None if self._running else Searcher.FINISHED
        target = self._running[trial_id] = self._waiting.pop(0)
        place = target.arm, target.seed
        if place not in self._trials:
            arm = next(arm for arm in self._arms if arm_name(arm) == target.arm)
            seed = self._sweep.seed_list[target.seed]
            self._trials[place] = self._plan(next(self._numbers), self._arms[arm], arm, seed)
        until = {"until": target.step} if target.step < self._race.rules.rungs[-1] else {}
        return {"trial": {**self._trials[place].to_dict(), **until}}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None: ...

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        target = self._running.pop(trial_id, None)
        if target is None:
            return
        last = result or {}
        status, metric = "failed" if error else str(last.get("status", "failed")), self._race.rules.metric
        if status == "interrupted":  # it is resumed in the next session, and the race with it
            self._is_interrupted = True
            self._waiting = []
        elif status == "failed" or int(last.get("step", 0)) >= target.step:
            trial = self._trials[target.arm, target.seed]
            measured = math.nan if status == "failed" else float(last.get(metric, math.nan))
            noise = self._noise(trial, target.step) if math.isfinite(measured) else None
            value = RungValue(target.arm, target.seed, target.step, measured, noise)
            self._values[self._key(value)] = value
        if not self._running and not self._waiting and not self._is_interrupted:
            self.decision = self._decide()

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...

    def _decide(self) -> RaceDecision:
        decision = self._race.decide(self._values.values())
        self._waiting = list(decision.train)
        self._on_decision(decision)
        return decision

    @staticmethod
    def _key(value: RungValue) -> tuple[str, int, int]:
        return value.arm, value.seed, value.step


def held_out_noise(home: Home, metric: str, trial: Trial, step: int) -> float | None:
    """Return the standard error of a trial's value at a step over held-out samples; None where it is not known."""
    values = read_by_sample(home.run(trial.run_id), step).get(metric)
    if values is None or len(values) < 2:
        return None
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def stop_dropped(decision: RaceDecision, folder: SweepFolder, home: Home, uri: str | None) -> None:
    """Record that waiting runs are stopped: those of dropped arms, and at the end of the race those of all arms.

    `uri` is the experiment's tracking address.
    """
    reasons = {each.arm: f"{each.reason} at step {each.step:,}" for each in decision.dropped}
    for trial in folder.planned_trials():
        reason = reasons.get(arm_name(trial.arm)) or (decision.end and f"the race has ended: {decision.end}")
        record, run = find_record(home, trial), home.run(trial.run_id)
        if not reason or record is None or record.status != "interrupted":
            continue
        with lock_run(run, LOCK_TIMEOUT):  # the process that led its last leg may still hold it
            update_record(run, status="stopped", message=reason)
            if run.journal.exists():
                with RunTracker(run, uri, home) as tracker:
                    end_run(tracker, "stopped", reason)
