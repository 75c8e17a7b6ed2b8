"""One session of a sweep, from its first trial to its report, and its progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ditlab.cluster.channel import CHANNEL_ERRORS, INTERRUPTED, KeyValueChannel
from ditlab.errors import RunFailed, UserError, first_line
from ditlab.reports.sweep_records import ENDED, Trial
from ditlab.runs.local import StopRequests, stop_signals
from ditlab.runs.locks import lock_run
from ditlab.spec.sweep import Sweep
from ditlab.sweeps.finish import SweepResult, count_ended, finish_sweep
from ditlab.sweeps.folder import find_record
from ditlab.sweeps.parent import ParentRun
from ditlab.sweeps.results import past_curves, summarize_sweep
from ditlab.sweeps.start import StartedSweep
from ditlab.sweeps.trials import PlannedTrial
from ditlab.sweeps.tuner import TunerThread
from ditlab.tracking.history import final_metrics
from ditlab.tracking.records import update_record

POLL_INTERVAL = 0.5  # seconds between readings of the trials' state
SAVE_INTERVAL = 10.0  # seconds between writes of the elapsed time


class SweepSession:
    """Runs the trials of a sweep that have not ended. Ray must be connected."""

    def __init__(
        self, started: StartedSweep, on_progress: Callable[[SweepProgress], None], warn: Callable[[str], None]
    ) -> None:
        """`on_progress` is called twice a second, `warn` with each warning; both in the thread that calls `run`."""
        self._started, self._folder = started, started.folder
        self._on_progress, self._warn = on_progress, warn
        self._sweep_id = started.folder.sweep_id
        self._channel = KeyValueChannel(f"sweep-{self._sweep_id}")
        self._seconds_before, self._start_time = started.folder.load_elapsed(), time.monotonic()
        self._saved_at = 0.0
        self._trials: dict[int, Trial] = {}
        self._ended: set[int] = set()
        self._num_warnings: dict[int, int] = {}
        self._is_over_budget = False

    def run(self) -> SweepResult:
        """Run the trials and write the report.

        Raises RunFailed where no trial has a value of the metric, or Ray Tune failed; the sweep can then be resumed.
        """
        started, folder = self._started, self._folder.folder
        with lock_run(folder), ParentRun(started) as parent:
            num_trials = started.num_trials
            update_record(folder, status="running", message="", trials=num_trials, total_steps=num_trials)
            self._channel.clear()
            past = past_curves(started.sweep, summarize_sweep(started, self._elapsed()))
            tuner = TunerThread(started, self._channel, past)
            try:
                with stop_signals() as requests:
                    self._follow(tuner, requests, parent)
                status = self._status(requests)
            except KeyboardInterrupt:
                update_record(folder, status="interrupted", message="ended at once")
                raise
            self._save_elapsed()
            with suppress(*CHANNEL_ERRORS):
                self._channel.clear()
            result = finish_sweep(started, status, self._elapsed(), parent, self._warn)
        if tuner.error:
            raise RunFailed(
                f"sweep {self._sweep_id}: Ray Tune failed ({type(tuner.error).__name__}: {first_line(tuner.error)}); "
                f"`ditlab tune --resume {self._sweep_id}` goes on.",
                kind="crash",
            ) from tuner.error
        if status == "failed":
            raise RunFailed(
                f"sweep {self._sweep_id}: {num_trials - count_ended(started)} trials could not be run; "
                f"`ditlab tune --resume {self._sweep_id}` tries again.",
                kind="crash",
            )
        return result

    def _follow(self, tuner: TunerThread, requests: StopRequests, parent: ParentRun) -> None:
        """Show and log the trials until Tune has ended; stop Tune on request, or when the time budget is used up."""
        sweep = self._started.sweep
        ended_before = frozenset(past.trial.number for past in self._started.past if past.has_ended)
        tuner.start()
        is_stopping = False
        while tuner.is_alive():
            tuner.join(POLL_INTERVAL)
            self._is_over_budget = sweep.time_budget is not None and self._elapsed() > sweep.time_budget
            if (requests.count or self._is_over_budget) and not is_stopping:
                is_stopping = True
                self._channel.put("stop", INTERRUPTED)
                tuner.stop()
                reason = "time_budget is used up" if self._is_over_budget else "stopping"
                more = "" if self._is_over_budget else "; once more ends at once"
                self._warn(f"{reason}: running trials save a checkpoint{more}.")
            trials = self._read_trials()
            leader = self._leader(trials)
            num_trials = self._started.num_trials
            self._on_progress(SweepProgress(self._sweep_id, sweep, trials, leader, num_trials, ended_before))
            parent.log_progress(trials, leader)
            self._save_elapsed_at_intervals()

    def _read_trials(self) -> list[Trial]:
        """Read the present state of every trial in the ledger."""
        trials = []
        for planned in self._folder.planned_trials():
            if planned.number not in self._ended:
                # A file or a channel that cannot be read now may be readable in the next round.
                with suppress(UserError, *CHANNEL_ERRORS):
                    self._trials[planned.number] = self._read_trial(planned)
            trials.append(self._trials.get(planned.number) or Trial(planned.number, planned.run_id, planned.values))
        return trials

    def _read_trial(self, planned: PlannedTrial) -> Trial:
        number, home = planned.number, self._started.home
        record = find_record(home, planned)
        self._forward_warnings(number)
        if record is None:
            return Trial(number, planned.run_id, planned.values)
        if record.status in ENDED:
            self._ended.add(number)
            metrics, step = final_metrics(home.run(planned.run_id)), record.step
        else:
            progress = self._channel.get(f"progress/{number}") or {}
            metrics, step = progress.get("metrics", {}), max(progress.get("step", 0), record.step)
        return Trial(
            number,
            planned.run_id,
            planned.values,
            record.status,
            step,
            record.total_steps,
            metrics=metrics,
            note=record.message,
        )

    def _forward_warnings(self, number: int) -> None:
        """Forward the trial's warnings that are new since the last round."""
        messages = self._channel.get(f"warnings/{number}") or []
        for message in messages[self._num_warnings.get(number, 0) :]:
            self._warn(f"trial {number}: {message}")
        self._num_warnings[number] = len(messages)

    def _leader(self, trials: list[Trial]) -> int | None:
        """Number of the best finished trial, by the first metric."""
        name, sign = self._started.sweep.metrics[0], -1 if self._started.sweep.modes[0] == "max" else 1
        done = [
            trial for trial in trials if trial.status == "finished" and math.isfinite(trial.metrics.get(name, math.nan))
        ]
        return min(done, key=lambda trial: (sign * trial.metrics[name], trial.number)).number if done else None

    def _status(self, requests: StopRequests) -> str:
        """Status in which this session ends."""
        if count_ended(self._started) >= self._started.num_trials:
            return "finished"
        return "interrupted" if requests.count else "stopped" if self._is_over_budget else "failed"

    def _elapsed(self) -> float:
        """Seconds of all sessions so far."""
        return self._seconds_before + time.monotonic() - self._start_time

    def _save_elapsed_at_intervals(self) -> None:
        if time.monotonic() - self._saved_at > SAVE_INTERVAL:
            self._saved_at = time.monotonic()
            self._save_elapsed()

    def _save_elapsed(self) -> None:
        with suppress(OSError):  # a full disk costs some seconds of the elapsed time, not the sweep
            self._folder.save_elapsed(self._elapsed())


@dataclass(frozen=True)
class SweepProgress:
    """State of a sweep's trials at one moment."""

    sweep_id: str
    sweep: Sweep
    trials: Sequence[Trial]
    """Every planned trial, by number."""
    leader: int | None
    """Number of the best finished trial, by the first metric."""
    num_trials: int
    """Number of trials of the whole sweep."""
    ended_before: frozenset[int]
    """Numbers of trials that ended in an earlier session."""

    @property
    def counts(self) -> str:
        """The trials counted by status: `2 running, 3 finished of 8`."""
        counts = {status: sum(trial.status == status for trial in self.trials) for status in ("running", *ENDED)}
        text = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        return f"{text or 'starting'} of {self.num_trials}"
