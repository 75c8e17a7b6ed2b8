"""One trial: a run like any other, made or taken up again, told to a sweep as it goes."""

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ditlab.checkpoints.handover import take_over
from ditlab.cluster.capacity import CpuShare
from ditlab.cluster.launch import train_with_retries
from ditlab.cluster.workers.channel import INTERRUPTED, PAUSED, STOPPED, KeyValueChannel
from ditlab.cluster.workers.group import WorkerPool
from ditlab.cluster.workers.heartbeat import CHANNEL_ERRORS
from ditlab.data.splits import open_data
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.runs.locks import lock_run
from ditlab.runs.request import RunRequest, checkpoint_store
from ditlab.runs.signals import StopRequests
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.reading.loading import load_experiment
from ditlab.spec.reading.yaml_text import dump_yaml
from ditlab.spec.sweep.spec import NoScheduler, Sweep
from ditlab.storage.files import write_durably
from ditlab.sweeps.folder import SweepFolder
from ditlab.sweeps.takeovers import Exploit, exploits, note_exploit
from ditlab.sweeps.trials import PlannedTrial, trial_experiment
from ditlab.tracking.environment import source_tags
from ditlab.tracking.records import create_run, read_record, update_record
from ditlab.tracking.upload.client import PARENT_TAG
from ditlab.training.plan import plan_run
from ditlab.training.reporting import RunOutcome, TrainingProgress

POLL = 0.05  # seconds between looks for an evaluation
PATIENCE = 300.0  # seconds that a process which led the trial before, or a donor's checkpoint, may take


@dataclass(frozen=True)
class Origin:
    """Where a trial begins anew: at another trial's checkpoint."""

    run_id: str
    step: int
    key: str
    """Of this takeover: it is done once, however often the process that leads the trial is replaced."""


class TrialWishes(StopRequests):
    """Asks the sweep's board whether the trial shall stop: its own process has no terminal."""

    sentence = ""

    def __init__(self, board: KeyValueChannel, number: int) -> None:
        self._board, self._topics = board, (f"stop/{number}", "stop")
        self.local = ""

    @property
    def count(self) -> int:  # type: ignore[override]
        return int(bool(self._wish()))

    @property
    def reason(self) -> str:  # type: ignore[override]
        return self._wish() or INTERRUPTED

    def _wish(self) -> str:
        with suppress(*CHANNEL_ERRORS):
            for topic in self._topics:
                if wish := self._board.get(topic):
                    self.local = str(wish)
                    break
        return self.local


class TrialRun(threading.Thread):
    """Trains a trial beside the thread that Tune calls."""

    def __init__(
        self, home: Home, sweep_id: str, trial: PlannedTrial, origin: Origin | None, share: CpuShare, crews: WorkerPool
    ) -> None:
        super().__init__(name=f"trial-{trial.number}", daemon=True)
        self.trial, self._origin = trial, origin
        self._home, self._share, self._crews = home, share, crews
        self._sweep_folder = SweepFolder(home.run(sweep_id))
        self._sweep_board = KeyValueChannel(f"sweep-{sweep_id}")
        self._board = KeyValueChannel(f"trial-{trial.run_id}")
        self._wishes = TrialWishes(self._sweep_board, trial.number)
        self._warnings: list[str] = []
        self._reported = 0
        self._outcome: RunOutcome | None = None

    def next_result(self) -> dict[str, Any]:
        """The next evaluation, or how it ended (`done`). Lets training go on from the evaluation before."""
        if self.ident is None:
            if self._wishes.count:
                return self._never_begun()
            self._board.clear()
            self.start()
        elif not self._wishes.count:
            self._board.put("go", self._reported)
        while self.is_alive():
            report = self._board.get("report")
            if report and report["step"] > self._reported:
                self._reported = report["step"]
                return {"step": report["step"], **report["metrics"]}
            self.join(POLL)
        return self._last_result()

    def _last_result(self) -> dict[str, Any]:
        if self._outcome is None:
            return {"step": self._reported, "done": True, "status": "failed"}
        return {"step": self._outcome.step, **self._outcome.metrics, "done": True, "status": self._outcome.status}

    def _never_begun(self) -> dict[str, Any]:
        """The sweep is over; what an earlier process left of the trial does not run."""
        folder = self._home.run(self.trial.run_id)
        status = "stopped" if self._wishes.reason == STOPPED else "interrupted"
        if folder.record.exists() and read_record(folder).status == "running":
            update_record(folder, status=status)
        return {"step": 0, "done": True, "status": status}

    def end(self, reason: str = PAUSED) -> None:
        """Ends the training, where it goes on, after a checkpoint."""
        if self.is_alive():
            self._wishes.local = reason
            self.join()
        self._board.clear()

    def run(self) -> None:
        try:
            self._outcome = self._train()
        except (UserError, RunFailed) as error:
            self._tell_failure(str(error))
        except Exception as error:
            self._tell_failure(f"{type(error).__name__}: {error}")

    def _tell_failure(self, message: str) -> None:
        """What ended a run stands in its record; what kept it from beginning, nowhere."""
        folder = self._home.run(self.trial.run_id)
        if not folder.record.exists() or read_record(folder).status != "failed":
            self._warn(f"could not be run: {message}")

    def _sweep(self) -> Sweep:
        return self._sweep_folder.sweep()

    def _experiment(self) -> Experiment:
        return trial_experiment(self._sweep(), self.trial)

    def _train(self) -> RunOutcome:
        sweep, experiment = self._sweep(), self._experiment()
        folder = self._home.run(self.trial.run_id)
        is_new = not folder.record.exists()
        if is_new:
            self._make(folder, experiment)
        books = RunLifecycle(folder, experiment, self._home, resumed=not is_new)
        tags = {**source_tags(), PARENT_TAG: self._sweep_folder.folder.run_id, "ditlab.trial": str(self.trial.number)}
        with lock_run(folder, PATIENCE):
            with books.kept():
                if self._origin and all(done.key != self._origin.key for done in exploits(folder)):
                    self._take_over(folder, experiment, self._origin)
                steps = plan_run(experiment, open_data(experiment.data, self._home)).total_steps
                gated = not isinstance(sweep.scheduler, NoScheduler)
                request = books.begin(steps, tags, board=self._board.launch, gated=gated)
                outcome = self._until_done(request, books)
            books.end(outcome)
        return outcome

    def _until_done(self, request: RunRequest, books: RunLifecycle) -> RunOutcome:
        try:
            return train_with_retries(
                request, self._crews, self._share, self._wishes, self._show, self._warn, books.record_failure
            )
        finally:
            if not self._crews.keep:
                self._crews.dismiss()

    def _make(self, folder: RunFolder, experiment: Experiment) -> None:
        """The run's folder; what a process that was killed here has left is no run yet."""
        shutil.rmtree(folder.path, ignore_errors=True)
        create_run(
            self._home, experiment.name, family=experiment.model.family, spec_hash=experiment.content_hash(),
            run_id=folder.run_id, tracking_uri=experiment.tracking.uri or "",
            parent=self._sweep_folder.folder.run_id, trial=self.trial.number,
        )  # fmt: skip
        write_durably(folder.spec, dump_yaml(experiment.to_dict()).encode())

    def _take_over(self, folder: RunFolder, experiment: Experiment, origin: Origin) -> None:
        """Another trial's checkpoint in place of the own ones. Waits for it: it may still be on its way to the disk."""
        before, reached = load_experiment(folder.spec), read_record(folder).step
        donor = self._home.run(origin.run_id)
        donor_store = checkpoint_store(donor, load_experiment(donor.spec).to_dict())
        deadline = time.monotonic() + PATIENCE
        while donor_store.last_step() < origin.step and time.monotonic() < deadline:
            time.sleep(POLL)
        at = take_over(checkpoint_store(folder, experiment.to_dict()), donor_store, origin.step)
        note_exploit(folder, Exploit(reached, origin.run_id, at, dict(self.trial.values), origin.key), before)

    def _show(self, progress: TrainingProgress) -> None:
        self._say(f"progress/{self.trial.number}", asdict(progress))

    def _warn(self, message: str) -> None:
        self._warnings.append(hide(message))
        self._say(f"warnings/{self.trial.number}", self._warnings)

    def _say(self, topic: str, value: Any) -> None:
        with suppress(*CHANNEL_ERRORS):
            self._sweep_board.put(topic, value)


def trial_of(config: Mapping[str, Any]) -> tuple[PlannedTrial, Origin | None]:
    """From Tune's configuration."""
    told = config["trial"]
    origin = Origin(**told["origin"]) if told.get("origin") else None
    return PlannedTrial(told["number"], told["run_id"], dict(told["values"])), origin
