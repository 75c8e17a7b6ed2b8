"""A training run, whether or not it has a checkpoint yet, and records that are added to it after its training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ditlab.analysis.saved_run import SavedRun
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.launch import checkpoint_store
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.plugins import check_installed
from ditlab.tracking.records import FoundRun, RunRecord, find_training_run
from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker


@dataclass(frozen=True)
class OpenedRun:
    """A training run's folder, record and experiment."""

    home: Home
    folder: RunFolder
    record: RunRecord
    experiment: Experiment
    warn: Callable[[str], None]
    """Called with each remark for people."""
    progress: Progress = ignore_progress
    """Receives the progress of long work."""

    def saved(self) -> SavedRun:
        """The run with its newest whole checkpoint. Raises UserError where it has none yet."""
        found = self.saved_if_any()
        if found is None:
            raise UserError(
                f"run {self.folder.run_id} ({self.record.name}, {self.record.status}) has no checkpoint yet; "
                "wait for its first one, or resume it."
            )
        return found

    def saved_if_any(self) -> SavedRun | None:
        """The run with its newest whole checkpoint; None where it has none yet."""
        spec = self.experiment.to_dict()
        checkpoint = checkpoint_store(self.folder, self.experiment.checkpoint.storage).newest(self.warn)
        if checkpoint is None:
            return None
        return SavedRun(self.home, self.folder, spec, checkpoint, self.warn, self.progress)

    def tracker(self) -> RunTracker:
        """The run's tracker, reopened."""
        tracking = self.experiment.tracking
        return RunTracker(self.folder, tracking.uri, self.home, warn=self.warn, budget=tracking.budget)


def open_training_run(text: str, home: Home, warn: Callable[[str], None]) -> OpenedRun:
    """Open the training run that `text` names: an id, a unique prefix of one, or a name (its newest run).

    Raises UserError for an unknown run and for a sweep.
    """
    return open_found(find_training_run(home, text), home, warn)


def open_found(
    found: FoundRun, home: Home, warn: Callable[[str], None], progress: Progress = ignore_progress
) -> OpenedRun:
    """Open a run that was found. `warn` is called with the finder's note, if any.

    Raises UserError where a package of the run's parts is not installed here.
    """
    if found.note:
        warn(found.note)
    check_installed(found.record.plugins, f"run {found.folder.run_id}")
    return OpenedRun(home, found.folder, found.record, load_recorded_experiment(found.folder.spec), warn, progress)


@dataclass
class LoggedRecords:
    """Records of a block, written to the run's journal at once."""

    tracker: RunTracker
    num_unsent: int = 0
    """After the block: records of the run that have not reached MLflow, and wait for `ditlab runs sync`."""


@contextmanager
def logged_records(tracker: RunTracker) -> Iterator[LoggedRecords]:
    """Add records by the tracker during the block, then send them; a server that does not answer is waited for 30 s."""
    records = LoggedRecords(tracker)
    try:
        yield records
    finally:
        records.num_unsent = tracker.close(CATCH_UP_TIMEOUT)
