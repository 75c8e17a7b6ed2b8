"""A race of a sweep's trials: its rules, the values of its runs at rungs, and its effects on runs.

Each of Ray Tune's trials is one leg (`search.RaceTrials`): it trains the run of an arm and a seed up to a rung, where
the run waits with a checkpoint and without a process. Once every leg of a look has ended, `Race.decide` says which runs
train on, which arms are dropped and which seeds are added. All of it follows from the runs' journals, so that a race
that was killed, in whichever phase, goes on to the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ditlab.home import Home
from ditlab.reports.sweep_records import MetricCurve, Trial
from ditlab.runs.locks import lock_run
from ditlab.spec.sweep import SeedRace, Sweep
from ditlab.sweeps.folder import SweepFolder, find_record
from ditlab.sweeps.race import Race, RaceDecision, RaceRules, RungValue
from ditlab.tracking.records import update_record
from ditlab.tracking.review import end_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.evaluation import read_by_sample

LOCK_TIMEOUT = 300.0  # seconds


def race_rungs(spec: SeedRace, total_steps: int) -> tuple[int, ...]:
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
    assert isinstance(spec, SeedRace)
    rules = RaceRules(
        rungs=race_rungs(spec, total_steps), metric=sweep.metrics[0], mode=sweep.modes[0], confidence=spec.confidence,
        min_seeds=len(sweep.first_seeds), max_seeds=sweep.num_seeds, indifference=spec.indifference,
        max_steps=spec.max_steps,
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
    if not isinstance(sweep.scheduler, SeedRace) or not trials:
        return []
    race = make_race(sweep, 1 + max(trial.arm for trial in trials), total_steps)
    values = rung_values(sweep, race, trials, partial(held_out_noise, home, sweep.metrics[0]))
    return race.decide(values).describe(race.rules, sweep.seed_list)


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
        reason = reasons.get(arm_name(trial.arm))
        if decision.end != "budget used up":  # then the race goes on with a larger one
            reason = reason or (decision.end and f"the race has ended: {decision.end}")
        record, run = find_record(home, trial), home.run(trial.run_id)
        if not reason or record is None or record.status != "interrupted":
            continue
        with lock_run(run, LOCK_TIMEOUT):  # the process that led its last leg may still hold it
            update_record(run, status="stopped", message=reason)
            if run.journal.exists():
                with RunTracker(run, uri, home) as tracker:
                    end_run(tracker, "stopped", reason)
