"""Training of one trial: an ordinary run that reports to its sweep, and stops when the sweep asks."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any

from ditlab.checkpoints.start_point import take_over
from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.channel import CHANNEL_ERRORS, INTERRUPTED, PAUSED, STOPPED, KeyValueChannel
from ditlab.cluster.launch import train_with_retries
from ditlab.cluster.workers import GroupSpec, WorkerPool
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.runs.forks import hold_start
from ditlab.runs.launch import Launch, RunCallbacks, checkpoint_store
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.runs.lineage import lineage_tags
from ditlab.runs.local import StopRequests
from ditlab.runs.locks import lock_run
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import encode_recorded, load_recorded_experiment
from ditlab.spec.plugins import plugin_packages, plugin_tags
from ditlab.spec.sweep import NoScheduler, Sweep
from ditlab.storage.files import write_durably
from ditlab.sweeps.folder import PlannedTrial, Takeover, read_takeovers, record_takeover, trial_experiment
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import PACE, final_metrics
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.records import create_run, list_runs, read_record, update_record
from ditlab.training.reporting import RunOutcome, TrainingProgress

POLL_INTERVAL = 0.05  # seconds between looks for an evaluation
LOCK_TIMEOUT = 300.0  # seconds for the process that led the trial before to end
DONOR_TIMEOUT = 300.0  # seconds for a donor's checkpoint to reach the disk


@dataclass(frozen=True)
class TakeoverRequest:
    """Checkpoint of another trial from which a trial goes on."""

    run_id: str
    step: int
    key: str
    """Unique key of the takeover, which is done once, however often the process that leads the trial is replaced."""


@dataclass(frozen=True)
class TrialContext:
    """Shared by the trials that one process leads."""

    home: Home
    sweep_id: str
    sweep: Sweep
    share: CpuShare
    """Cores of each worker."""
    pool: WorkerPool


class TrialThread(threading.Thread):
    """Trains a trial beside the thread that Tune calls."""

    def __init__(self, context: TrialContext, trial: PlannedTrial, takeover: TakeoverRequest | None) -> None:
        super().__init__(name=f"trial-{trial.number}", daemon=True)
        self._shared, self._trial, self._takeover = context, trial, takeover
        self._folder = context.home.run(trial.run_id)
        self._sweep_channel = KeyValueChannel(f"sweep-{context.sweep_id}")
        self._channel = KeyValueChannel(f"trial-{trial.run_id}")
        self._stop_requests = TrialStopRequests(self._sweep_channel, trial.number)
        self._warnings: list[str] = []
        self._reported_step = 0
        self._outcome: RunOutcome | None = None

    def next_result(self) -> dict[str, Any]:
        """Let the training continue, and block until its next evaluation or its end; return that as Tune's result."""
        if self.ident is None:
            if self._stop_requests.count:
                return self._not_started_result()
            self._channel.clear()
            self.start()
        elif not self._stop_requests.count:
            self._channel.put("go", self._reported_step)
        while self.is_alive():
            report = self._channel.get("report")
            if report and report["step"] > self._reported_step:
                self._reported_step = report["step"]
                return {"step": report["step"], **report["metrics"]}
            self.join(POLL_INTERVAL)
        return self._last_result()

    def end(self, reason: str = PAUSED) -> None:
        """Stop the training after a checkpoint, if it still runs, and block until its end."""
        if self.is_alive():
            self._stop_requests.known_reason = reason
            self.join()
        self._channel.clear()

    def run(self) -> None:
        try:
            self._outcome = self._train()
        except (UserError, RunFailed) as error:
            self._warn_of_failure(str(error))
        except Exception as error:
            self._warn_of_failure(f"{type(error).__name__}: {error}")

    def _last_result(self) -> dict[str, Any]:
        if self._outcome is None:
            return {"step": self._reported_step, "done": True, "status": "failed"}
        metrics = self._outcome.metrics
        if any(name.startswith(PACE) for name in self._shared.sweep.metrics):
            # Speed over the whole trial: the outcome's is its last second's.
            metrics = metrics | {
                name: value for name, value in final_metrics(self._folder).items() if name.startswith(PACE)
            }
        return {"step": self._outcome.step, **metrics, "done": True, "status": self._outcome.status}

    def _not_started_result(self) -> dict[str, Any]:
        """Result of a trial that starts after its sweep was stopped; also ends what a killed process left running."""
        status = "stopped" if self._stop_requests.reason == STOPPED else "interrupted"
        if self._folder.record.exists() and read_record(self._folder).status == "running":
            update_record(self._folder, status=status)
        return {"step": 0, "done": True, "status": status}

    def _warn_of_failure(self, message: str) -> None:
        """Warn of a failure that the run's record does not hold: one before the run has started."""
        if not self._folder.record.exists() or read_record(self._folder).status != "failed":
            self._warn(f"could not be run: {message}")

    def _train(self) -> RunOutcome:
        context, folder = self._shared, self._folder
        experiment = trial_experiment(context.sweep, self._trial)
        resumed = folder.record.exists()
        if not resumed:
            self._create_run(experiment)
        tags = {**source_tags(), PARENT_TAG: context.sweep_id, "ditlab.trial": str(self._trial.number)}
        tags |= plugin_tags(experiment.to_dict())
        if experiment.start:
            with suppress(UserError) if resumed else nullcontext():  # with checkpoints of its own it needs no parent
                hold_start(experiment, context.home, folder.run_id)
            tags |= lineage_tags(experiment.start.point, list_runs(context.home))
        is_gated = not isinstance(context.sweep.scheduler, NoScheduler)
        launch = Launch(
            experiment, context.home, folder.run_id, resumed, tags, trial_channel=self._channel.name, gated=is_gated
        )
        lifecycle = RunLifecycle(launch)
        with lock_run(folder, LOCK_TIMEOUT):
            with lifecycle.recording_failure():
                if self._takeover and all(done.key != self._takeover.key for done in read_takeovers(folder)):
                    self._take_over(experiment, self._takeover)
                lifecycle.start(launch.plan.total_steps)
                pool, spec = context.pool, GroupSpec(experiment.resources, context.share)
                callbacks = RunCallbacks(self._show_progress, self._warn, lifecycle.record_attempt_failure)
                try:
                    outcome = train_with_retries(launch, pool, spec, self._stop_requests, callbacks)
                finally:
                    if not pool.keep:
                        pool.shut_down()
            lifecycle.end(outcome)
        return outcome

    def _create_run(self, experiment: Experiment) -> None:
        """Make the run's folder, in place of one without a record that a killed process left."""
        shutil.rmtree(self._folder.path, ignore_errors=True)
        create_run(
            self._shared.home, experiment.name, family=experiment.model.family, spec_hash=experiment.content_hash(),
            run_id=self._folder.run_id, tracking_uri=experiment.tracking.uri or "",
            parent=self._shared.sweep_id, trial=self._trial.number, plugins=plugin_packages(experiment.to_dict()),
            start=experiment.start.point if experiment.start else "",
        )  # fmt: skip
        write_durably(self._folder.spec, encode_recorded(experiment.to_dict()))

    def _take_over(self, experiment: Experiment, takeover: TakeoverRequest) -> None:
        """Replace the trial's checkpoints by another trial's, once that is on the disk."""
        before, reached = load_recorded_experiment(self._folder.spec), read_record(self._folder).step
        donor = self._shared.home.run(takeover.run_id)
        donor_store = checkpoint_store(donor, load_recorded_experiment(donor.spec).checkpoint.storage)
        deadline = time.monotonic() + DONOR_TIMEOUT
        while donor_store.last_step() < takeover.step and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
        own_store = checkpoint_store(self._folder, experiment.checkpoint.storage)
        step = take_over(own_store, donor_store, takeover.step)
        done = Takeover(reached, takeover.run_id, step, dict(self._trial.values), takeover.key)
        record_takeover(self._folder, done, before)

    def _show_progress(self, progress: TrainingProgress) -> None:
        self._sweep_channel.try_put(f"progress/{self._trial.number}", asdict(progress))

    def _warn(self, message: str) -> None:
        self._warnings.append(hide(message))
        self._sweep_channel.try_put(f"warnings/{self._trial.number}", self._warnings)


def trial_from_config(config: Mapping[str, Any]) -> tuple[PlannedTrial, TakeoverRequest | None]:
    """Read the trial, and its takeover if there is one, from Tune's configuration."""
    values = config["trial"]
    takeover = TakeoverRequest(**values["takeover"]) if values.get("takeover") else None
    return PlannedTrial(values["number"], values["run_id"], dict(values["values"])), takeover


def stop_trial(channel: KeyValueChannel, number: int) -> None:
    """Send the scheduler's request that the trial with this number stops for good."""
    channel.try_put(_topic(number), STOPPED)  # sent again at the trial's next evaluation


class TrialStopRequests(StopRequests):
    """Requests to stop one trial, or the whole sweep, read from the sweep's channel.

    The process that leads a trial has no terminal, so it gets no signals.
    """

    message = ""

    def __init__(self, channel: KeyValueChannel, number: int) -> None:
        self._channel, self._topics = channel, (_topic(number), "stop")
        self.known_reason = ""
        """Reason of the latest request; empty for none."""

    @property
    def count(self) -> int:  # type: ignore[override]
        return int(bool(self._read()))

    @property
    def reason(self) -> str:  # type: ignore[override]
        return self._read() or INTERRUPTED

    def _read(self) -> str:
        with suppress(*CHANNEL_ERRORS):
            for topic in self._topics:
                if reason := self._channel.get(topic):
                    self.known_reason = str(reason)
                    break
        return self.known_reason


def _topic(number: int) -> str:
    return f"stop/{number}"
