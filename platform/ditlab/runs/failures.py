"""Classes of failure, and what follows from each: decided purely, acted on by the launcher."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ditlab.errors import RunFailed, UserError
from ditlab.spec.experiment import Experiment
from ditlab.training.memory import Room


class Kind(StrEnum):
    """What happened; the run's tag `ditlab.failure` and the exit message have it."""

    USER_ERROR = "user_error"
    """The input is wrong: fails at once, exit code 2."""
    CRASH = "crash"
    """The worker body raised: the same would happen again."""
    DIVERGED = "diverged"
    STORAGE = "storage"
    """The last checkpoint could not be written."""
    OUT_OF_MEMORY = "out_of_memory"
    """Tried again with a smaller micro-batch."""
    LOST_WORKER = "lost_worker"
    """A process is gone, its node is there."""
    LOST_NODE = "lost_node"
    HUNG_WORKER = "hung_worker"
    """Found by its silence, killed, replaced."""
    PREEMPTED = "preempted"
    """The cluster takes a node back: goes on elsewhere, and counts for nothing."""
    NO_ROOM = "no_room"
    """The cluster has no place for the workers yet: waits, and counts for nothing."""
    UNREACHABLE = "storage_unreachable"
    """The place of the checkpoints, which was there before, does not answer."""


MAY_PASS = {Kind.LOST_WORKER, Kind.LOST_NODE, Kind.HUNG_WORKER, Kind.UNREACHABLE}
UNCOUNTED = {Kind.PREEMPTED, Kind.NO_ROOM}


@dataclass(frozen=True)
class Failure:
    """One failure, named."""

    kind: Kind
    message: str
    """A sentence, without its full stop."""
    step: int = -1
    """For OUT_OF_MEMORY: the step (from 0) that can be tried in smaller pieces, -1 for none."""

    def tags(self, number: int) -> dict[str, str]:
        """For the tracked run, of its `number`-th failure since the launch."""
        return {
            "ditlab.failure": self.kind.value,
            "ditlab.failures": str(number),
            "ditlab.failure_message": self.message[:1000],
        }

    def error(self) -> UserError | RunFailed:
        """What a person gets."""
        if self.kind is Kind.USER_ERROR:
            return UserError(self.message)
        words = self.kind.value.replace("_", " ")
        message = self.message if words in self.message.lower() else f"{words}: {self.message}"
        return RunFailed(message, kind=self.kind.value)


@dataclass(frozen=True)
class Recovery:
    """What a run has been through since its launch; each failure gives the next."""

    experiment: Experiment
    failures: int = 0
    """In a row, without a new checkpoint between them."""
    saved_step: int = -1
    """Of the newest checkpoint at the last failure."""
    room: Room = field(default_factory=Room)

    def after(self, failure: Failure, saved_step: int) -> "Recovery":
        """How to try again. Raises the failure's error where that would be in vain.

        Args:
            failure: what ended the last try.
            saved_step: step of the newest checkpoint now, -1 for none.
        """
        limit = self.experiment.resources.max_failures
        failures = 0 if saved_step > self.saved_step else self.failures
        now = replace(self, saved_step=saved_step, failures=failures)
        if failure.kind in UNCOUNTED:
            return now
        if failure.kind is Kind.OUT_OF_MEMORY and failure.step >= 0:
            return replace(now, room=self.room.after(failure.step, self.experiment))
        if failure.kind not in MAY_PASS:
            raise failure.error()
        failures += 1
        if failures > limit:
            again = f" ({failures} in a row without a new checkpoint; resources.max_failures={limit})" if limit else ""
            error = failure.error()
            raise RunFailed(f"{error}{again}", kind=failure.kind.value)
        return replace(now, failures=failures)

    def sentence(self, failure: Failure) -> str:
        """What is done about a failure that may pass, for people."""
        if failure.kind is Kind.OUT_OF_MEMORY:
            return self.room.sentence(failure.step, self.experiment)
        where = f"step {self.saved_step}" if self.saved_step >= 0 else "the beginning"
        count = "" if failure.kind in UNCOUNTED else f" ({self.failures} of {self.experiment.resources.max_failures})"
        return f"{failure.kind.value.replace('_', ' ')}: {failure.message}; going on from {where}{count}."


def told_by_worker(told: Mapping[str, Any] | None) -> Failure | None:
    """The failure that a worker body wrote down before it ended, if one did."""
    if told is None:
        return None
    kind, message = Kind(told["kind"]), told["message"]
    if kind is Kind.CRASH:
        message = f"worker {told['rank']} failed: {message}\n{told['trace']}"
    return Failure(kind, message, told.get("step", -1))
