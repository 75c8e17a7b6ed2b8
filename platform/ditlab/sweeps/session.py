"""One session of a sweep, from its first trial to its report: its progress, and Ray Tune's main loop in a thread."""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune

from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.channel import CHANNEL_ERRORS, INTERRUPTED, KeyValueChannel
from ditlab.cluster.nodes import refresh_node_count
from ditlab.cluster.session import lost_ray
from ditlab.cluster.workers import WorkerPool
from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home
from ditlab.reports.sweep_records import ENDED, SweepSummary, Trial
from ditlab.runs.locks import lock_run
from ditlab.runs.signals import GRACE, StopRequests, stop_signals
from ditlab.spec.sweep import OptunaSearch, Race, Sweep
from ditlab.sweeps.folder import SweepFolder, current_values, find_record, sweep_arms
from ditlab.sweeps.race import RaceDecision
from ditlab.sweeps.racing import held_out_noise, make_race, stop_dropped
from ditlab.sweeps.results import (
    ParentRun,
    SweepResult,
    count_ended,
    finish_sweep,
    past_curves,
    read_results,
    summarize_sweep,
)
from ditlab.sweeps.search import OptunaTrials, RaceTrials, make_scheduler
from ditlab.sweeps.start import StartedSweep
from ditlab.sweeps.trial import TrialThread, stop_trial
from ditlab.tracking.history import final_values
from ditlab.tracking.records import update_record

# Set before Tune reads them. Results are in each run's journal, so Tune keeps none; a failed trial reports no metric;
# as many trials may be starting at once as may run; the session itself reports how trials fail.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "RAY_AIR_NEW_OUTPUT": "0",
}
MAX_LOST_PROCESSES = 3  # restarts of the process that leads a trial
POLL_INTERVAL = 0.5  # seconds between readings of the trials' state
SAVE_INTERVAL = 10.0  # seconds between writes of the elapsed time


class SweepSession:
    """Runs the trials of a sweep that have not ended. Ray must be connected."""

    def __init__(
        self, started: StartedSweep, on_progress: Callable[[SweepProgress], None], warn: Callable[[str], None],
        grace: float = GRACE,
    ) -> None:  # fmt: skip
        """`on_progress` is called twice a second, `warn` with each warning; both in the thread that calls `run`."""
        self._started, self._folder = started, started.folder
        self._on_progress, self._warn, self._grace = on_progress, warn, grace
        self._sweep_id = started.folder.sweep_id
        self._channel = KeyValueChannel(f"sweep-{self._sweep_id}")
        self._seconds_before, self._start_time = started.folder.load_elapsed(), time.monotonic()
        self._saved_at = 0.0
        self._trials: dict[int, Trial] = {}
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
            tuner = TunerThread(started, self._channel, summarize_sweep(started, self._elapsed()))
            try:
                with stop_signals(self._grace) as requests:
                    self._follow(tuner, requests, parent)
                status = "interrupted" if requests.count else "stopped" if self._is_over_budget else "failed"
                if tuner.decision.end if tuner.decision else count_ended(started) >= num_trials:
                    status = "finished"
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
        ended_before = frozenset(trial.number for trial in self._started.past if trial.has_ended)
        name, sign = sweep.metrics[0], -1 if sweep.modes[0] == "max" else 1
        tuner.start()
        is_stopping = False
        while tuner.is_alive():
            tuner.join(POLL_INTERVAL)
            if lost := lost_ray():
                update_record(self._folder.folder, status="interrupted", message=lost)
                more = f"sweep {self._sweep_id}: {lost}; `ditlab tune --resume {self._sweep_id}` goes on."
                raise KeyboardInterrupt if requests.count else RunFailed(more, kind="lost_node")
            self._is_over_budget = sweep.time_budget is not None and self._elapsed() > sweep.time_budget
            if (requests.count or self._is_over_budget) and not is_stopping:
                is_stopping = True
                self._channel.put("stop", INTERRUPTED)
                tuner.stopper.requested.set()
                reason = "time_budget is used up" if self._is_over_budget else "stopping"
                more = "" if self._is_over_budget else "; once more ends at once"
                self._warn(f"{reason}: running trials save a checkpoint{more}.")
            trials = self._read_trials()
            done = [trial for trial in sweep_arms(sweep, trials) if trial.status == "finished"]
            done = [trial for trial in done if math.isfinite(trial.metrics.get(name, math.nan))]
            most = max((trial.num_seeds for trial in done), default=0)
            done = [trial for trial in done if trial.num_seeds == most]
            best = min(done, key=lambda trial: (sign * trial.metrics[name], trial.number), default=None)
            best = best if all(trial.measured == done[0].measured for trial in done) else None
            leader, num_trials = best.number if best else None, max(self._started.num_trials, len(trials))
            self._on_progress(SweepProgress(self._sweep_id, sweep, trials, leader, num_trials, ended_before))
            parent.log_progress(trials, best)
            if time.monotonic() - self._saved_at > SAVE_INTERVAL:
                self._saved_at = time.monotonic()
                self._save_elapsed()

    def _read_trials(self) -> list[Trial]:
        """Read the present state of every trial in the ledger, and pass on new warnings."""
        planned, home, channel = self._folder.planned_trials(), self._started.home, self._channel
        for trial in planned:
            number = trial.number
            if self._trials.get(number, trial).has_ended:
                continue
            with suppress(UserError, *CHANNEL_ERRORS):  # what cannot be read now may be readable in the next round
                record, messages = find_record(home, trial), channel.get(f"warnings/{number}") or []
                for message in messages[self._num_warnings.get(number, 0) :]:
                    self._warn(f"trial {number}: {message}")
                self._num_warnings[number] = len(messages)
                if record is None:
                    continue
                progress = channel.get(f"progress/{number}") or {}
                metrics, step = progress.get("metrics", {}), max(progress.get("step", 0), record.step)
                measured: Mapping[tuple[str, str], str] = {}
                if record.status in ENDED:
                    history, measured, _ = read_results(self._started.sweep, home.run(trial.run_id))
                    metrics, step = final_values(history), record.step
                self._trials[number] = replace(
                    trial, status=record.status, step=step, total_steps=record.total_steps, metrics=metrics,
                    measured=measured, note=record.message, values=current_values(home, trial),
                )  # fmt: skip
        return [self._trials.get(trial.number, trial) for trial in planned]

    def _elapsed(self) -> float:
        """Seconds of all sessions so far."""
        return self._seconds_before + time.monotonic() - self._start_time

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
    """Number of the best finished trial, or arm, by the first metric."""
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


class TunerThread(threading.Thread):
    """Runs Ray Tune from the first trial to the last."""

    def __init__(self, started: StartedSweep, channel: KeyValueChannel, past: SweepSummary) -> None:
        """`past` is the sweep's state at the start of this session."""
        super().__init__(name="ray-tune", daemon=True)
        self._sweep, self._channel, self._past = started, channel, past
        self.decision: RaceDecision | None = None
        """Latest decision of a race; None for other schedulers, and before the first."""
        self.stopper = _IdleStopper(started)
        self._storage = started.folder.path / "tune"
        self.error: Exception | None = None

    def run(self) -> None:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self._sweep.prepared.concurrency.num_trials)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            if self._sweep.num_remaining or isinstance(self._sweep.sweep.scheduler, Race):
                with suppress(*CHANNEL_ERRORS):
                    refresh_node_count()  # Ray's actor for that starts on the node that asks first, and ends with it
                self._make_tuner().fit()
        except Exception as error:
            self.error = error
        finally:
            for folder in (self._storage, self._storage.with_name("ray")):
                shutil.rmtree(folder, ignore_errors=True)  # the ledger and the runs hold all that counts

    def _make_tuner(self) -> tune.Tuner:
        started, sweep = self._sweep, self._sweep.sweep
        folder, home, concurrency = started.folder, started.home, started.prepared.concurrency
        leader = make_trainable(str(home.root), folder.sweep_id, concurrency.share, sweep.reuse_workers)
        stop = partial(stop_trial, self._channel)  # Tune copies its schedulers with all that they hold
        config: dict[str, Any] = {
            "max_concurrent_trials": concurrency.num_trials,
            "reuse_actors": sweep.reuse_workers,
            "scheduler": make_scheduler(sweep, started.prepared.total_steps, past_curves(sweep, self._past), stop),
        }
        space: dict[str, Any] = {}
        if isinstance(sweep.scheduler, Race):
            config |= {"search_alg": self._race(), "num_samples": -1}  # as many as it asks for
        elif isinstance(sweep.search, OptunaSearch):
            config["search_alg"] = OptunaTrials(sweep, started.past, lambda *trial: folder.plan_trial(home, *trial))
            config["num_samples"] = started.num_remaining
        else:
            remaining = []  # with their latest values
            for trial in started.past:
                if not trial.has_ended:
                    remaining.append(replace(trial, values=current_values(home, trial)).to_dict())
            space["trial"] = tune.grid_search(remaining)
        return tune.Tuner(
            # The workers take the resources; Tune refuses none at all, and with a little CPU would starve the last one.
            tune.with_resources(leader, {"cpu": 0, "memory": 2**20}),
            param_space=space,
            tune_config=tune.TuneConfig(**config),
            run_config=tune.RunConfig(
                name=secrets.token_hex(4),
                storage_path=str(self._storage),
                stop=self.stopper,
                failure_config=tune.FailureConfig(max_failures=MAX_LOST_PROCESSES),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs keep their own
                verbose=0,
            ),
        )

    def _race(self) -> RaceTrials:
        started, sweep = self._sweep, self._sweep.sweep
        folder, home, uri = started.folder, started.home, started.prepared.base.tracking.uri

        def on_decision(decision: RaceDecision) -> None:
            self.decision = decision
            stop_dropped(decision, folder, home, uri)

        arms = {trial.arm: trial.values for trial in started.past}
        race = make_race(sweep, len(arms), started.prepared.total_steps)
        plan = partial(folder.plan_trial, home)
        noise = partial(held_out_noise, home, sweep.metrics[0])
        return RaceTrials(sweep, race, arms, self._past.runs, plan, on_decision, noise)


class _IdleStopper(tune.Stopper):
    """Ends Tune on request, once no trial is training or saving its last checkpoint.

    Trials read the request from the channel and end by themselves; Tune would kill their processes after ten seconds.
    """

    def __init__(self, started: StartedSweep) -> None:
        self.requested, self._started = threading.Event(), started

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if not self.requested.is_set():
            return False
        records = [find_record(self._started.home, trial) for trial in self._started.folder.planned_trials()]
        return not any(record and record.status == "running" for record in records)

    def __deepcopy__(self, memo: Any) -> _IdleStopper:
        return self

    def __reduce__(self) -> tuple[Callable[[], bool], tuple[()]]:
        return (bool, ())  # Tune keeps its settings in a file, from which nothing is restored here


def make_trainable(home_root: str, sweep_id: str, share: CpuShare, keep_workers: bool) -> type[tune.Trainable]:
    """Make Tune's class for the trials of one sweep."""

    class Trainable(tune.Trainable):
        """Leads the workers of one trial after another. Takes no resources itself: the workers do."""

        def setup(self, config: dict[str, Any]) -> None:
            home = Home(Path(home_root))
            folder = SweepFolder(home.run(sweep_id))
            self._pool = WorkerPool(folder.path / "ray", keep_workers)
            self._lead = partial(TrialThread, home, sweep_id, folder.load_sweep(), share, self._pool)
            self._trial = self._lead(config["trial"])

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._trial.end()
            self._trial = self._lead(new_config["trial"])
            return True

        def step(self) -> dict[str, Any]:
            return self._trial.next_result()

        def cleanup(self) -> None:
            self._trial.end()
            self._pool.shut_down()

    return Trainable
