"""Record of a run from its start to its end, however it ends: `run.json`, and the tracked run."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ditlab.errors import RunFailed, UserError, cannot_write, first_line
from ditlab.home import Home, RunFolder
from ditlab.runs.launch import Launch
from ditlab.runs.requests import withdraw_stops
from ditlab.secrets import hide
from ditlab.spec.files import encode_recorded
from ditlab.storage.files import write_durably
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import update_record
from ditlab.tracking.review import end_run
from ditlab.tracking.tracker import RunTracker
from ditlab.training.reporting import RunOutcome

_EarlyEnd = Literal["failed", "interrupted"]


@dataclass(frozen=True)
class RunLifecycle:
    """Writer of one run's status."""

    launch: Launch

    def start(self, total_steps: int) -> None:
        """Record that the run is running. Raises UserError where DITLAB_HOME cannot be written."""
        try:
            launch = self.launch
            spec_hash = launch.experiment.content_hash()
            before = launch.before
            if before and before.content_hash() != spec_hash:
                launch.folder.receipts.mkdir(exist_ok=True)  # the steps so far were trained by it
                old = launch.folder.spec_of(before.content_hash())
                write_durably(old, encode_recorded(before.to_dict()))
            if launch.resumed:
                # It may be longer now, or sampled otherwise: later commands go by what it is now.
                write_durably(launch.folder.spec, encode_recorded(launch.experiment.to_dict()))
                withdraw_stops(launch.folder)
            update_record(
                launch.folder,
                status="running",
                message="",
                total_steps=total_steps,
                spec_hash=spec_hash,
            )
        except OSError as error:
            raise home_write_error(self.launch.home, error) from error

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record any exception of the block as the run's end, and raise it again with the run's
        name in its message.
        """
        folder = self.launch.folder
        try:
            yield
        except BaseException as error:
            status: _EarlyEnd = "failed"
            tags = {"ditlab.failure": "crash"}
            if isinstance(error, KeyboardInterrupt):
                status = "interrupted"
                tags = {}
            message = f"{type(error).__name__}: {error}".rstrip(": ").partition("\n")[0]
            if isinstance(error, UserError | RunFailed):
                tags = {"ditlab.failure": error.kind}
                message = str(error)
                error.args = (f"run {folder.run_id} ({self.launch.experiment.name}): {error}",)
            _update(folder, status=status, message=message.partition("\n")[0])
            self._close_tracked_run(status, message, tags)
            raise

    def end(self, outcome: RunOutcome) -> None:
        """Record how the run ended."""
        _update(self.launch.folder, status=outcome.status, step=outcome.step)
        # its workers died before they could report it
        if outcome.status == "interrupted" and not outcome.metrics:
            self._close_tracked_run("interrupted", "interrupted")

    def record_attempt_failure(self, tags: Mapping[str, str]) -> None:
        """Journal the tags of a failure after which the run goes on; the next worker uploads
        them.
        """
        if self.launch.folder.journal.exists():
            journal = JournalWriter(self.launch.folder)
            journal.append("tags", values={key: hide(value) for key, value in tags.items()})
            journal.close()

    def _close_tracked_run(
        self, status: _EarlyEnd, message: str, tags: Mapping[str, str] | None = None
    ) -> None:
        """End the tracked run for workers that were killed: MLflow would show it as running for
        ever.
        """
        launch = self.launch
        if launch.folder.journal.exists():
            # imports Jinja and PIL, which a start needs not
            from ditlab.runs.page import log_run_report

            with RunTracker(launch.folder, launch.experiment.tracking.uri, launch.home) as tracker:
                tracker.set_tags({"ditlab.error": message[:5000], **(tags or {})})
                log_run_report(tracker, launch, status, _warn)
                end_run(tracker, status, message)


def home_write_error(home: Home, error: OSError) -> UserError:
    """UserError for a DITLAB_HOME whose disk refuses a write."""
    return cannot_write(f"DITLAB_HOME={home.root}", error, "point DITLAB_HOME at another folder")


def _update(folder: RunFolder, **changes: Any) -> None:
    """Change the run's record; print a warning where the disk refuses, so that the run's own end is
    still reported.
    """
    try:
        update_record(folder, **changes)
    except (OSError, UserError) as error:
        _warn(f"{folder.record} cannot be written ({first_line(error)}).")


def _warn(message: str) -> None:
    sys.stderr.write(f"warning: {message}\n")
