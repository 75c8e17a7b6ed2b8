"""Schedulers of add-ons that choose, in rounds, which trials of a sweep train next, and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ditlab.home import Home
from ditlab.parts import load_part
from ditlab.reports.sweep_records import Trial
from ditlab.runs.locks import lock_run
from ditlab.spec.sweep import Scheduler, Sweep
from ditlab.sweeps.folder import SweepFolder, find_record
from ditlab.tracking.records import update_record
from ditlab.tracking.review import end_run
from ditlab.tracking.tracker import RunTracker

LOCK_TIMEOUT = 300.0  # seconds


class ChosenTrial(NamedTuple):
    """A trial of a round."""

    configuration: int
    seed: int | None
    """One of the sweep's `seed_list`. A trial that the sweep has not yet is made."""
    until: int | None
    """Step at which it waits, with a checkpoint and without a process; None: it trains to its
    end.
    """


@dataclass(frozen=True)
class Round:
    """Trials of a sweep that train next."""

    trials: Sequence[ChosenTrial]
    """In the order in which they start; none at the end of the sweep."""
    stopped: Mapping[int, str] = field(default_factory=dict)
    """Configurations whose waiting trials are stopped, with the reason of each."""
    used_up: str = ""
    """Field with the budget that ends the sweep: `scheduler.max_steps`. Resumed with more, the
    sweep goes on.
    """


class TrialChooser:
    """Choice of the trials of a sweep that train next. It is named by
    `ditlab.spec.sweep.Scheduler.chooser`.

    It has no state of its own: equal trials give an equal round, so that a sweep that was killed
    goes on alike.
    """

    def __init__(self, sweep: Sweep, total_steps: int, home: Home) -> None:
        """`total_steps` are those of a whole trial."""
        self.sweep = sweep
        self.total_steps = total_steps
        self.home = home

    def next_round(self, trials: Sequence[Trial]) -> Round:
        """Choose the next round from all planned trials, with the curves of the first metric up to
        where they ended or wait. Called as a session begins, and once all trials of a round have
        ended or wait."""
        raise NotImplementedError

    def sentences(self, trials: Sequence[Trial]) -> list[str]:
        """Describe the state of the sweep, for its report: what is left, what is behind, how it
        ended.
        """
        return []


def make_chooser(sweep: Sweep, total_steps: int, home: Home) -> TrialChooser | None:
    """Make the chooser that the sweep's scheduler names; None where it has none.

    Raises UserError for one that cannot be used.
    """
    scheduler = sweep.scheduler
    if not isinstance(scheduler, Scheduler) or not scheduler.chooser:
        return None
    chooser: TrialChooser = load_part("scheduler", scheduler.kind, scheduler.chooser)(
        sweep, total_steps, home
    )
    return chooser


def stop_waiting(chosen: Round, folder: SweepFolder, home: Home, uri: str | None) -> None:
    """Record that waiting runs of configurations that a round stops are stopped; `uri` is the
    experiment's tracking address.
    """
    for trial in folder.planned_trials():
        reason = chosen.stopped.get(trial.configuration)
        record = find_record(home, trial)
        if not reason or record is None or record.status != "interrupted":
            continue
        run = home.run(trial.run_id)
        with lock_run(run, LOCK_TIMEOUT):  # the process that led it last may still hold it
            update_record(run, status="stopped", message=reason)
            if run.journal.exists():
                with RunTracker(run, uri, home) as tracker:
                    end_run(tracker, "stopped", reason)
