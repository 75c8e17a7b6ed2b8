"""What is written down of a run while it goes and when it ends, whatever ends it: its record, its tracked run."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from ditlab.errors import RunFailed, UserError
from ditlab.home import Home, RunFolder
from ditlab.runs.request import RunRequest
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.yaml_text import dump_yaml
from ditlab.storage.files import write_durably
from ditlab.tracking.journal.journal import Journal
from ditlab.tracking.records import update_record
from ditlab.tracking.tracker import RunTracker
from ditlab.training.reporting import Outcome


@dataclass(frozen=True)
class RunLifecycle:
    """Of one run."""

    folder: RunFolder
    experiment: Experiment
    home: Home
    resumed: bool

    def begin(self, total_steps: int, tags: Mapping[str, str], **rest: Any) -> RunRequest:
        """Writes down that it runs; what its workers must know (`rest`: other fields of the request).

        Raises UserError where DITLAB_HOME cannot be written.
        """
        spec = self.experiment.to_dict()
        try:
            if self.resumed:
                # It may be longer now, or sampled otherwise: later commands go by what it is now.
                write_durably(self.folder.spec, dump_yaml(spec).encode())
            update_record(self.folder, status="running", message="", total_steps=total_steps)
        except OSError as error:
            raise home_write_error(self.home, error) from error
        return RunRequest(spec, self.folder.run_id, str(self.home.root), self.resumed, dict(tags), **rest)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, the run goes on; what is raised is written down and goes through, with the run's name in it."""
        folder = self.folder
        try:
            yield
        except (UserError, RunFailed) as error:
            kind = error.kind if isinstance(error, RunFailed) else "user_error"
            _write_down(folder, status="failed", message=str(error).partition("\n")[0])
            self._close_tracked_run("failed", str(error), {"ditlab.failure": kind})
            error.args = (f"run {folder.run_id} ({self.experiment.name}): {error}",)
            raise
        except BaseException as error:
            status: Literal["failed", "interrupted"] = (
                "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            )
            message = f"{type(error).__name__}: {error}".rstrip(": ").partition("\n")[0]
            _write_down(folder, status=status, message=message)
            tags = {"ditlab.failure": "crash"} if status == "failed" else {}
            self._close_tracked_run(status, message, tags)
            raise

    def end(self, outcome: Outcome) -> None:
        """Writes down how it ended."""
        _write_down(self.folder, status=outcome.status, step=outcome.step)
        if outcome.status == "interrupted" and not outcome.metrics:  # its workers died before they could say so
            self._close_tracked_run("interrupted", "interrupted")

    def record_failure(self, tags: Mapping[str, str]) -> None:
        """In the run's tags, before it goes on. The worker that goes on sends them."""
        if self.folder.journal.exists():
            journal = Journal(self.folder)
            journal.append("tags", values={key: hide(value) for key, value in tags.items()})
            journal.close()

    def _close_tracked_run(
        self, status: Literal["failed", "interrupted"], message: str, tags: Mapping[str, str] | None = None
    ) -> None:
        """A worker that was killed could not say so itself: MLflow would show its run as running for ever."""
        if self.folder.journal.exists():
            with RunTracker(self.folder, self.experiment.tracking.uri, self.home) as tracker:
                tracker.set_tags({"ditlab.error": message[:5000], **(tags or {})})
                tracker.end(status)


def home_write_error(home: Home, error: OSError) -> UserError:
    """What DITLAB_HOME's disk would not take."""
    return UserError(
        f"DITLAB_HOME={home.root} cannot be written ({error.strerror}); make room there, or point DITLAB_HOME at "
        "another folder."
    )


def _write_down(folder: RunFolder, **changes: Any) -> None:
    """In the run's record, where the disk takes it: how a run ended is said all the same."""
    try:
        update_record(folder, **changes)
    except (OSError, UserError) as error:
        reason = getattr(error, "strerror", None) or error
        sys.stderr.write(f"warning: {folder.record} cannot be written ({reason}).\n")
