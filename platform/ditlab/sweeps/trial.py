"""Training of one trial: an ordinary run that reports to its sweep, and stops when the sweep
asks.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Any

from ditlab.checkpoints.start_point import take_over
from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.channel import CHANNEL_ERRORS, INTERRUPTED, PAUSED, STOPPED, KeyValueChannel
from ditlab.cluster.launch import train_with_retries
from ditlab.cluster.nodes import wait_for
from ditlab.cluster.workers import GroupSpec, WorkerPool
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home, RunFolder
from ditlab.parts import places
from ditlab.reports.sweep_records import Trial
from ditlab.runs.forks import hold_start
from ditlab.runs.launch import Launch, RunCallbacks, checkpoint_store, weights_of
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.runs.lineage import CHANGED_TAG, lineage_tags, values_text
from ditlab.runs.locks import lock_run
from ditlab.runs.signals import StopRequests
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import encode_recorded, load_recorded_experiment
from ditlab.spec.plugins import plugin_packages, plugin_tags
from ditlab.spec.sweep import NoScheduler, Sweep
from ditlab.storage.files import write_durably
from ditlab.sweeps.folder import Takeover, read_takeovers, record_takeover, trial_experiment
from ditlab.sweeps.progress import PROGRESS, WARNINGS
from ditlab.tracking.environment import source_tags
from ditlab.tracking.history import PACE, final_values, metric_history
from ditlab.tracking.mlflow_runs import GROUP_TAG, PARENT_TAG, SEED_TAG
from ditlab.tracking.records import create_run, list_runs, read_record, update_record
from ditlab.tracking.review import end_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.reporting import RunOutcome

POLL_INTERVAL = 0.05  # seconds between checks for an evaluation
LOCK_TIMEOUT = 300.0  # seconds for the process that led the trial before to end
DONOR_TIMEOUT = 300.0  # seconds for a donor's checkpoint to reach the disk


class TrialThread(threading.Thread):
    """Trains a trial beside the thread that Tune calls."""

    def __init__(
        self,
        home: Home,
        sweep_id: str,
        sweep: Sweep,
        share: CpuShare,
        pool: WorkerPool,
        config: Mapping[str, Any],
    ) -> None:
        """`share` has the cores of each worker, `config` the trial and its takeover, as Tune's
        configuration has them.

        With `until` the training ends at the evaluation of that step, after a checkpoint, to be
        gone on with later. A takeover names the trial whose checkpoint is taken over (`run_id`),
        its `step`, and a unique `key`: it is done once, however often the process that leads the
        trial is replaced.
        """
        values = dict(config)
        self._takeover: dict[str, Any] = values.pop("takeover", {})
        self._until = values.pop("until", None)
        self._trial = Trial(**values)
        super().__init__(name=f"trial-{self._trial.number}", daemon=True)
        self._home = home
        self._sweep_id = sweep_id
        self._sweep = sweep
        self._pool = pool
        self._share = share
        self._folder = home.run(self._trial.run_id)
        self._sweep_channel = KeyValueChannel(f"sweep-{sweep_id}")
        self._channel = KeyValueChannel(f"trial-{self._trial.run_id}")
        self._stop_requests = TrialStopRequests(self._sweep_channel, self._trial.number)
        self._warnings: list[str] = []
        self._reported_step = 0
        self._outcome: RunOutcome | None = None

    def next_result(self) -> dict[str, Any]:
        """Let the training continue, and block until its next evaluation or its end; return that as
        Tune's result.
        """
        if self.ident is None:
            if self._stop_requests.count:
                return self._stopped_before_start()
            waiting = self._waiting_evaluation()
            if waiting:
                return waiting
            self._channel.clear()
            # where that checkpoint is damaged, training passes known evaluations again
            self._channel.put("go", self._reported_step)
            self.start()
        elif not self._stop_requests.count:
            self._channel.put("go", self._reported_step)
        while self.is_alive():
            report = self._channel.get("report")
            if report and report["step"] > self._reported_step:
                self._reported_step = report["step"]
                return self._evaluated(report["step"], report["metrics"])
            self.join(POLL_INTERVAL)
        return self._ended()

    def _stopped_before_start(self) -> dict[str, Any]:
        """Record that a stop was requested before the training began; return Tune's result."""
        if not self._folder.record.exists():
            return {"step": 0, "done": True, "status": "interrupted"}
        if self._stop_requests.reason == STOPPED:
            return self._stopped_where_it_waited()
        # a process that led the trial before may have been killed
        if read_record(self._folder).status == "running":
            update_record(self._folder, status="interrupted")
        return {"step": 0, "done": True, "status": "interrupted"}

    def _stopped_where_it_waited(self) -> dict[str, Any]:
        """Record that the scheduler stopped the trial at its last evaluation, after which the
        process that led it was lost; return Tune's result.
        """
        name = self._sweep.metrics[0]
        history = metric_history(self._folder)
        step = int(history[name].steps[-1]) if name in history else 0
        experiment = trial_experiment(self._sweep, self._trial)
        with lock_run(self._folder, LOCK_TIMEOUT):
            update_record(self._folder, status="stopped", step=step)
            if self._folder.journal.exists():
                uri = experiment.tracking.uri
                with RunTracker(self._folder, uri, self._home) as tracker:
                    end_run(tracker, "stopped")
        metrics = values_at(self._folder, step, self._sweep.metrics)
        return {"step": step, **metrics, "done": True, "status": "stopped"}

    def _waiting_evaluation(self) -> dict[str, Any] | None:
        """Return the evaluation at which the trial's newest checkpoint is, of which the process
        that led it may not have heard what the scheduler decides; None where there is none.

        Training goes on after that checkpoint, and would report later evaluations alone.
        """
        is_gated = not isinstance(self._sweep.scheduler, NoScheduler) and self._until is None
        is_known = self._reported_step > 0 or not self._folder.record.exists()
        if not is_gated or is_known or self._is_takeover_open():
            return None
        experiment = trial_experiment(self._sweep, self._trial)
        store = checkpoint_store(self._folder, experiment.checkpoint.storage)
        step = -1
        with suppress(UserError):  # the training itself says why it cannot be reached
            step = store.last_step()
        if not 0 < step < read_record(self._folder).total_steps:
            return None
        metrics = values_at(self._folder, step, self._sweep.metrics)
        if not metrics:
            return None
        self._reported_step = step
        return {"step": step, **metrics}

    def _is_takeover_open(self) -> bool:
        """Return True while another trial's checkpoint is to be taken over."""
        if not self._takeover:
            return False
        key = self._takeover["key"]
        return all(done.key != key for done in read_takeovers(self._folder))

    def _evaluated(self, step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return Tune's result of an evaluation; end the training where it was to wait there."""
        found = {"step": step, **metrics}
        if self._until is None or step < self._until:
            return found
        self.end()
        # a worker was killed between the evaluation and its report
        if step > self._until:
            at_end = values_at(self._folder, self._until, self._sweep.metrics)
            found = {"step": self._until, **at_end}
        status = "failed" if self._outcome is None else "paused"
        return {**found, "done": True, "status": status}

    def _ended(self) -> dict[str, Any]:
        """Return Tune's result of a training that has ended."""
        if self._outcome is None:
            return {"step": self._reported_step, "done": True, "status": "failed"}
        metrics = dict(self._outcome.metrics)
        if any(name.startswith(PACE) for name in self._sweep.metrics):
            # Speed over the whole trial: the outcome's is its last second's.
            final = final_values(metric_history(self._folder))
            metrics |= {name: value for name, value in final.items() if name.startswith(PACE)}
        return {"step": self._outcome.step, **metrics, "done": True, "status": self._outcome.status}

    def end(self, reason: str = PAUSED) -> None:
        """Stop the training after a checkpoint, if it still runs, and block until its end."""
        if self.is_alive():
            self._stop_requests.known_reason = reason
            self.join()
        self._channel.clear()

    def run(self) -> None:
        try:
            self._outcome = self._train()
        except Exception as error:
            # The run's record holds a failure, but for one before the run has started.
            if self._folder.record.exists() and read_record(self._folder).status == "failed":
                return
            if isinstance(error, UserError | RunFailed):
                self._warn(f"could not be run: {error}")
            else:
                self._warn(f"could not be run: {type(error).__name__}: {error}")

    def _train(self) -> RunOutcome:
        home = self._home
        folder = self._folder
        pool = self._pool
        topic = f"{PROGRESS}{self._trial.number}"
        experiment = trial_experiment(self._sweep, self._trial)
        resumed = folder.record.exists()
        self._sweep_channel.try_put(topic, {})
        if not resumed:
            self._create_run(experiment)
        tags = self._tags(experiment, resumed)
        weights = weights_of(experiment, home, folder if resumed else None)
        launch = Launch(
            experiment,
            home,
            folder.run_id,
            resumed,
            self._spec_before(experiment) if resumed else None,
            tags,
            weights=weights.recorded() if weights else {},
            trial_channel=self._channel.name,
            gated=not isinstance(self._sweep.scheduler, NoScheduler),
            observers=tuple(places("observers")),
        )
        lifecycle = RunLifecycle(launch)
        with lock_run(folder, LOCK_TIMEOUT):
            with lifecycle.recording_failure():
                if self._is_takeover_open():
                    self._take_over(experiment, **self._takeover)
                lifecycle.start(launch.plan.total_steps)
                callbacks = RunCallbacks(
                    lambda progress: self._sweep_channel.try_put(topic, asdict(progress)),
                    self._warn,
                    lifecycle.record_attempt_failure,
                )
                group = GroupSpec(experiment.resources, self._share)
                try:
                    outcome = train_with_retries(
                        launch, pool, group, self._stop_requests, callbacks
                    )
                finally:
                    if not pool.keep:
                        pool.shut_down()
            lifecycle.end(outcome)
        return outcome

    @property
    def _group(self) -> str:
        """Group of the runs of one configuration."""
        return f"{self._sweep_id}.{self._trial.configuration}"

    def _create_run(self, experiment: Experiment) -> None:
        """Make the trial's run, with its record and its spec."""
        spec = experiment.to_dict()
        # a killed process may have left it without a record
        shutil.rmtree(self._folder.path, ignore_errors=True)
        create_run(
            self._home,
            experiment.name,
            family=experiment.model.family,
            spec_hash=experiment.content_hash(),
            run_id=self._folder.run_id,
            tracking_uri=experiment.tracking.uri or "",
            parent=self._sweep_id,
            trial=self._trial.number,
            plugins=plugin_packages(spec),
            start=experiment.start.point if experiment.start else "",
            group=self._group,
        )
        write_durably(self._folder.spec, encode_recorded(spec))

    def _tags(self, experiment: Experiment, resumed: bool) -> dict[str, str]:
        """Return the tags of the trial's tracked run; hold the checkpoint that it starts from."""
        trial = self._trial
        tags = {
            **source_tags(),
            PARENT_TAG: self._sweep_id,
            "ditlab.trial": str(trial.number),
            CHANGED_TAG: values_text(trial.values),
            **plugin_tags(experiment.to_dict()),
        }
        if trial.seed is not None:
            tags[GROUP_TAG] = self._group
            tags[SEED_TAG] = str(trial.seed)
        start = experiment.start
        if start:
            # with checkpoints of its own it needs no parent
            with suppress(UserError) if resumed else nullcontext():
                hold_start(start, self._home, self._folder.run_id)
            tags |= lineage_tags(start.point, list_runs(self._home))
        return tags

    def _spec_before(self, experiment: Experiment) -> Experiment | None:
        """Return the experiment that a resumed trial trained with so far; None for an equal one,
        and where it cannot be read: it is written again.
        """
        with suppress(UserError):
            before = load_recorded_experiment(self._folder.spec)
            if before.to_dict() != experiment.to_dict():
                return before
        return None

    def _take_over(self, experiment: Experiment, run_id: str, step: int, key: str) -> None:
        """Replace the trial's checkpoints by another trial's of a step, once that is on the
        disk.
        """
        before = load_recorded_experiment(self._folder.spec)
        donor = self._home.run(run_id)
        donor_store = checkpoint_store(
            donor, load_recorded_experiment(donor.spec).checkpoint.storage
        )
        wait_for(lambda: donor_store.last_step() >= step, DONOR_TIMEOUT, POLL_INTERVAL)
        taken = take_over(
            checkpoint_store(self._folder, experiment.checkpoint.storage), donor_store, step
        )
        record_takeover(
            self._folder, Takeover(step, run_id, taken, dict(self._trial.values), key), before
        )

    def _warn(self, message: str) -> None:
        self._warnings.append(hide(message))
        self._sweep_channel.try_put(f"{WARNINGS}{self._trial.number}", self._warnings)


def values_at(folder: RunFolder, step: int, names: Iterable[str]) -> dict[str, float]:
    """Return a run's metrics at a step, as far as its journal has them there."""
    history = metric_history(folder)
    at = {
        name: history[name].values[history[name].steps == step] for name in names if name in history
    }
    return {name: float(values[-1]) for name, values in at.items() if len(values)}


def stop_trial(channel: KeyValueChannel, number: int) -> None:
    """Send the scheduler's request that the trial with this number stops for good."""
    channel.try_put(f"stop/{number}", STOPPED)  # sent again at the trial's next evaluation


class TrialStopRequests(StopRequests):
    """Requests to stop one trial, or the whole sweep, read from the sweep's channel.

    The process that leads a trial has no terminal, so it gets no signals.
    """

    message = ""

    def __init__(self, channel: KeyValueChannel, number: int) -> None:
        self._channel = channel
        self._topics = (f"stop/{number}", "stop")
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
                reason = self._channel.get(topic)
                if reason:
                    self.known_reason = str(reason)
                    break
        return self.known_reason
