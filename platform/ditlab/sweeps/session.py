"""One session of a sweep, from its first trial to its report: its progress, and Ray Tune's main
loop in a thread.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune

from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.channel import CHANNEL_ERRORS, INTERRUPTED, KeyValueChannel
from ditlab.cluster.nodes import refresh_node_count
from ditlab.cluster.session import lost_ray, set_defaults
from ditlab.cluster.workers import WorkerPool
from ditlab.errors import RunFailed, first_line
from ditlab.home import Home
from ditlab.reports.sweep_records import SweepSummary, Trial
from ditlab.runs.budget import CHECK_INTERVAL, BudgetWatch, device_kind
from ditlab.runs.locks import lock_run
from ditlab.runs.observers import EndStatus, ObserverMaker, RunEnd, RunObservers
from ditlab.runs.signals import StopRequests, stop_signals
from ditlab.spec.sweep import NoScheduler, OptunaSearch
from ditlab.sweeps.chooser import Round, TrialChooser, stop_waiting
from ditlab.sweeps.folder import SweepFolder, current_values
from ditlab.sweeps.memory import read_memory
from ditlab.sweeps.progress import SweepProgress, SweepTrials
from ditlab.sweeps.results import (
    ParentRun,
    SweepResult,
    finish_sweep,
    summarize_sweep,
)
from ditlab.sweeps.search import (
    ChosenTrials,
    NeverCopied,
    OptunaTrials,
    Population,
    make_scheduler,
)
from ditlab.sweeps.start import StartedSweep
from ditlab.sweeps.trial import TrialThread, stop_trial
from ditlab.tracking.index import DeviceHours
from ditlab.tracking.records import update_record

# Set before Tune reads them. Results are in each run's journal, so Tune keeps none; a failed trial
# reports no metric; as many trials may be starting at once as may run; the session itself reports
# how trials fail.
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
        self,
        started: StartedSweep,
        on_progress: Callable[[SweepProgress], None],
        warn: Callable[[str], None],
        grace: float,
        makers: Sequence[ObserverMaker],
    ) -> None:
        """`on_progress` is called twice a second, `warn` with each warning; both in the thread that
        calls `run`. `makers` make the observers."""
        self._started = started
        self._folder = started.folder
        self._on_progress = on_progress
        self._warn = warn
        self._grace = grace
        self._sweep_id = started.folder.sweep_id
        self._channel = KeyValueChannel(f"sweep-{self._sweep_id}")
        self._seconds_before = started.folder.load_elapsed()
        self._start_time = time.monotonic()
        self._saved_at = 0.0
        self._trials = SweepTrials(started, self._channel, warn)
        self._end_reason = ""
        """The clause on the budget that ended this session; empty for none."""
        self._device_hours = DeviceHours(started.home)
        self._next_check = 0.0
        self._home_budget = BudgetWatch(started.home, started.prepared.base)
        self._observers = RunObservers([maker(started, self._trials) for maker in makers], warn)

    def run(self) -> SweepResult:
        """Run the trials and write the report.

        Raises RunFailed where no trial has a value of the metric, or Ray Tune failed; the sweep can
        then be resumed.
        """
        started = self._started
        folder = self._folder.folder
        tracked = ParentRun(started.folder, started.home, started.sweep, started.prepared.base)
        with lock_run(folder), self._observers, tracked as parent:
            num_trials = started.num_trials
            update_record(
                folder, status="running", message="", trials=num_trials, total_steps=num_trials
            )
            self._channel.clear()
            past = None
            if started.prepared.chooser:
                past = summarize_sweep(started, self._elapsed())
            tuner = TunerThread(started, self._channel, past, self._trials)
            try:
                with stop_signals(self._grace) as requests:
                    self._follow(tuner, requests, parent)
                self._trials.read(is_last=True)
                num_left = max(num_trials, len(self._trials.all)) - self._trials.num_ended
                status = self._end_status(tuner, num_left, is_interrupted=bool(requests.count))
            except KeyboardInterrupt:
                update_record(folder, status="interrupted", message="ended at once")
                raise
            self._save_elapsed()
            with suppress(*CHANNEL_ERRORS):
                self._channel.clear()
            result = finish_sweep(
                started, status, self._elapsed(), parent, self._warn, self._end_reason
            )
            self._raise_failure(tuner, status, num_left)
            self._observers.end = RunEnd(status, self._end_reason)
        return result

    def _end_status(self, tuner: TunerThread, num_left: int, is_interrupted: bool) -> EndStatus:
        """Decide how the session has ended; `num_left` trials have not."""
        if tuner.round and tuner.round.used_up:
            self._end_reason = f"{tuner.round.used_up} is used up"
            return "stopped"
        if tuner.is_over(num_left):
            return "finished"
        if is_interrupted:
            return "interrupted"
        return "stopped" if self._end_reason else "failed"

    def _raise_failure(self, tuner: TunerThread, status: str, num_left: int) -> None:
        """Raise RunFailed where Ray Tune failed, or trials could not be run."""
        if tuner.error:
            raise RunFailed(
                f"sweep {self._sweep_id}: Ray Tune failed ({type(tuner.error).__name__}: "
                f"{first_line(tuner.error)}); `ditlab tune --resume {self._sweep_id}` goes on.",
                kind="crash",
            ) from tuner.error
        if status == "failed":
            raise RunFailed(
                f"sweep {self._sweep_id}: {num_left} trials could not be run; "
                f"`ditlab tune --resume {self._sweep_id}` tries again.",
                kind="crash",
            )

    def _follow(self, tuner: TunerThread, requests: StopRequests, parent: ParentRun) -> None:
        """Show and log the trials until Tune has ended; stop Tune on request, or when a budget is
        used up.
        """
        sweep = self._started.sweep
        states = self._trials
        ended_before = frozenset(trial.number for trial in self._started.past if trial.has_ended)
        tuner.start()
        is_stopping = False
        num_logged = -1
        while tuner.is_alive():
            tuner.join(POLL_INTERVAL)
            self._check_ray(is_interrupted=bool(requests.count))
            if not is_stopping and not self._end_reason:
                self._end_reason = self._used_up()
            is_new_request = not is_stopping and bool(requests.count or self._end_reason)
            if is_new_request:
                is_stopping = True
                self._request_stop()
            trials = states.read()
            if is_new_request:  # trials that begin from here on see the request first
                tuner.stopper.requested.set()
            num_trials = max(self._started.num_trials, len(trials))
            leader = states.leader.number if states.leader else None
            self._on_progress(
                SweepProgress(self._sweep_id, sweep, trials, leader, num_trials, ended_before)
            )
            if states.num_ended != num_logged:
                num_logged = states.num_ended
                parent.log_progress(trials, states.leader)
                self._observers.tell(lambda observer: observer.trials_ended())
            if time.monotonic() - self._saved_at > SAVE_INTERVAL:
                self._saved_at = time.monotonic()
                self._save_elapsed()

    def _check_ray(self, is_interrupted: bool) -> None:
        """Raise RunFailed where Ray is lost, and KeyboardInterrupt where a stop was requested."""
        lost = lost_ray()
        if not lost:
            return
        update_record(self._folder.folder, status="interrupted", message=lost)
        if is_interrupted:
            raise KeyboardInterrupt
        raise RunFailed(
            f"sweep {self._sweep_id}: {lost}; `ditlab tune --resume {self._sweep_id}` goes on.",
            kind="lost_node",
        )

    def _request_stop(self) -> None:
        """Ask all trials to stop after a checkpoint, and say so."""
        self._channel.put("stop", INTERRUPTED)
        if self._end_reason:
            self._warn(f"{self._end_reason}: running trials save a checkpoint.")
        else:
            self._warn("stopping: running trials save a checkpoint; once more ends at once.")

    def _used_up(self) -> str:
        """Return the clause on a budget that is used up; empty while the sweep may go on."""
        sweep = self._started.sweep
        started = self._started
        if sweep.time_budget is not None and self._elapsed() > sweep.time_budget:
            return "time_budget is used up"
        if sweep.budget and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + CHECK_INTERVAL
            device = device_kind(started.prepared.base)
            used = self._device_hours.total([trial.run_id for trial in self._trials.all])[device]
            if used >= sweep.budget.device_hours:
                return (
                    f"budget.device_hours={sweep.budget.device_hours:g} is used up ({used:.3g} "
                    f"{device} hours)"
                )
        return self._home_budget.sentence()

    def _elapsed(self) -> float:
        """Seconds of all sessions so far."""
        return self._seconds_before + time.monotonic() - self._start_time

    def _save_elapsed(self) -> None:
        with suppress(OSError):  # a full disk costs some seconds of the elapsed time, not the sweep
            self._folder.save_elapsed(self._elapsed())


class TunerThread(threading.Thread):
    """Runs Ray Tune from the first trial to the last."""

    def __init__(
        self,
        started: StartedSweep,
        channel: KeyValueChannel,
        past: SweepSummary | None,
        trials: SweepTrials,
    ) -> None:
        """`past` is the sweep's state at the start of this session, for a chooser."""
        super().__init__(name="ray-tune", daemon=True)
        self._sweep = started
        self._channel = channel
        self._past = past
        self._trials = trials
        self.round: Round | None = None
        """Latest round of the scheduler's chooser; None without one, and before the first."""
        self.stopper = _IdleStopper(trials)
        self._storage = started.folder.path / "tune"
        self.error: Exception | None = None

    def run(self) -> None:
        set_defaults(SETTINGS)
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(self._sweep.prepared.concurrency.num_trials)
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        try:
            if self._sweep.num_remaining or self._sweep.prepared.chooser:
                with suppress(*CHANNEL_ERRORS):
                    # Ray's actor for that starts on the node that asks first, and ends with it
                    refresh_node_count()
                self._make_tuner().fit()
        except Exception as error:
            self.error = error
        finally:
            for folder in (self._storage, self._storage.with_name("ray")):
                # the ledger and the runs hold all that counts
                shutil.rmtree(folder, ignore_errors=True)

    def is_over(self, num_left: int) -> bool:
        """Return True where nothing is left to train; `num_left` trials have not ended."""
        if self.round:
            return not self.round.trials
        return num_left == 0

    def _make_tuner(self) -> tune.Tuner:
        started = self._sweep
        sweep = self._sweep.sweep
        folder = started.folder
        home = started.home
        concurrency = started.prepared.concurrency
        leader = make_trainable(
            str(home.root), folder.sweep_id, concurrency.share, sweep.reuse_workers
        )
        # Tune copies its schedulers with all that they hold
        stop = partial(stop_trial, self._channel)
        chooser = started.prepared.chooser
        past = []
        if not chooser and not isinstance(sweep.scheduler, NoScheduler):
            past = read_memory(home, sweep, started.past)
        scheduler = make_scheduler(sweep, started.prepared.total_steps, past, stop)
        config: dict[str, Any] = {
            "max_concurrent_trials": concurrency.num_trials,
            "reuse_actors": sweep.reuse_workers,
            "scheduler": scheduler,
        }
        space: dict[str, Any] = {}
        if chooser:
            config["search_alg"] = self._chosen_trials(chooser)
            config["num_samples"] = -1  # as many as it asks for
        elif isinstance(sweep.search, OptunaSearch):
            config["search_alg"] = OptunaTrials(sweep, started.past, self._plan)
            config["num_samples"] = started.num_remaining
        else:
            takeovers = scheduler.open_takeovers() if isinstance(scheduler, Population) else {}
            remaining = []  # with their latest values
            for trial in started.past:
                if not trial.has_ended:
                    latest = replace(trial, values=current_values(home, trial)).to_dict()
                    remaining.append(takeovers.get(trial.number, latest))
            space["trial"] = tune.grid_search(remaining)
        return tune.Tuner(
            # The workers take the resources; Tune refuses none at all, and with a little CPU would
            # starve the last one.
            tune.with_resources(leader, {"cpu": 0, "memory": 2**20}),
            param_space=space,
            tune_config=tune.TuneConfig(**config),
            run_config=tune.RunConfig(
                name=secrets.token_hex(4),
                storage_path=str(self._storage),
                stop=self.stopper,
                failure_config=tune.FailureConfig(max_failures=MAX_LOST_PROCESSES),
                # runs keep their own
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        )

    def _plan(
        self, number: int, values: Mapping[str, Any], configuration: int, seed: int | None
    ) -> Trial:
        """Write a new trial to the ledger."""
        folder = self._sweep.folder
        trial = folder.plan_trial(self._sweep.home, number, values, configuration, seed)
        self._trials.add(trial)
        return trial

    def _chosen_trials(self, chooser: TrialChooser) -> ChosenTrials:
        started = self._sweep
        assert self._past is not None, "a chooser goes on from the past"

        def on_round(found: Round) -> None:
            self.round = found
            stop_waiting(found, started.folder, started.home, started.prepared.base.tracking.uri)

        return ChosenTrials(started.sweep, chooser, self._past.runs, self._plan, on_round)


class _IdleStopper(NeverCopied, tune.Stopper):
    """Ends Tune on request, once no trial is training or saving its last checkpoint.

    Trials read the request from the channel and end by themselves; Tune would kill their processes
    after ten seconds.
    """

    def __init__(self, trials: SweepTrials) -> None:
        self.requested = threading.Event()
        self._trials = trials

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.requested.is_set() and not self._trials.is_any_running()


def make_trainable(
    home_root: str, sweep_id: str, share: CpuShare, keep_workers: bool
) -> type[tune.Trainable]:
    """Make Tune's class for the trials of one sweep."""

    class Trainable(tune.Trainable):
        """Leads the workers of one trial after another. Takes no resources itself: the workers
        do.
        """

        def setup(self, config: dict[str, Any]) -> None:
            # in a job it may be in the launcher's environment alone
            os.environ["DITLAB_HOME"] = home_root
            home = Home(Path(home_root))
            folder = SweepFolder(home.run(sweep_id))
            self._pool = WorkerPool(folder.path / "ray", keep_workers)
            self._lead = partial(
                TrialThread, home, sweep_id, folder.load_sweep(), share, self._pool
            )
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
