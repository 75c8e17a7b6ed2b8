"""Classes of failure, and the recovery that follows from each: pure decisions, which the launcher
carries out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ditlab.errors import RunFailed, UserError
from ditlab.spec.experiment import Experiment
from ditlab.training.recovery import MemoryPlan


class FailureKind(StrEnum):
    """Class of a failure, as the run's tag `ditlab.failure` and the error message name it."""

    USER_ERROR = "user_error"
    """The input is wrong: fails at once, exit code 2."""
    CRASH = "crash"
    """The worker body raised an exception: another attempt would raise it again."""
    DIVERGED = "diverged"
    STORAGE = "storage"
    """The last checkpoint could not be written."""
    OUT_OF_MEMORY = "out_of_memory"
    """Tried again with a smaller micro-batch."""
    NODE_OUT_OF_MEMORY = "node_out_of_memory"
    """Ray ended a worker as its node had hardly any memory left. Where the run's own workers use
    the most, tried again with half the micro-batch, once; else, and after that, as a lost worker.
    """
    CANNOT_START = "cannot_start"
    """Ray cannot start the workers, and another attempt would fail as well."""
    LOST_WORKER = "lost_worker"
    """A process is gone, its node is there."""
    LOST_NODE = "lost_node"
    HUNG_WORKER = "hung_worker"
    """A worker without heartbeat or progress: killed and replaced."""
    PREEMPTED = "preempted"
    """The cluster takes a node away: the run goes on elsewhere, and the failure is not counted."""
    NO_RESOURCES = "no_room"
    """The cluster has no resources for the workers yet: the run waits, and the failure is not
    counted.
    """
    STORAGE_UNREACHABLE = "storage_unreachable"
    """The store of the checkpoints or of streamed data, which answered before, does not answer."""


RETRYABLE = {
    FailureKind.LOST_WORKER,
    FailureKind.LOST_NODE,
    FailureKind.HUNG_WORKER,
    FailureKind.STORAGE_UNREACHABLE,
    FailureKind.NODE_OUT_OF_MEMORY,
}
UNCOUNTED = {FailureKind.PREEMPTED, FailureKind.NO_RESOURCES}


@dataclass(frozen=True)
class Failure:
    """One failure of an attempt to train a run."""

    kind: FailureKind
    message: str
    """A sentence, without its full stop."""
    step: int = -1
    """Step (from 0) that did not fit into memory and can be tried with smaller micro-batches, -1
    for none.
    """
    is_own: bool = False
    """True for a node's memory that is used up by the run's own workers more than by any other
    process.
    """

    def tags(self, number: int) -> dict[str, str]:
        """Tags of the tracked run for its `number`-th failure since the launch."""
        return {
            "ditlab.failure": self.kind.value,
            "ditlab.failures": str(number),
            "ditlab.failure_message": self.message[:1000],
        }

    def error(self) -> UserError | RunFailed:
        """The exception that reports this failure to the user."""
        if self.kind is FailureKind.USER_ERROR:
            return UserError(self.message)
        words = self.kind.value.replace("_", " ")
        if words in self.message.lower():
            message = self.message
        else:
            message = f"{words}: {self.message}"
        return RunFailed(message, kind=self.kind.value)


@dataclass(frozen=True)
class Recovery:
    """State of a run's retries since its launch; immutable, each failure returns the next state."""

    experiment: Experiment
    failures: int = 0
    """Failures in a row, without a new checkpoint between them."""
    saved_step: int = -1
    """Step of the newest checkpoint at the last failure."""
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    halved_for: Failure | None = None
    """The shortage of a node's memory for which the micro-batch was halved: at most one since the
    launch.
    """

    def after(self, failure: Failure, saved_step: int) -> "Recovery":
        """The state after a failure, with the newest checkpoint's step (-1: none). Raises a final
        failure's error.
        """
        limit = self.experiment.resources.max_failures
        now = replace(self, saved_step=saved_step)
        if saved_step > self.saved_step:
            now = replace(now, failures=0)
        if failure.kind in UNCOUNTED:
            return now
        if failure.kind is FailureKind.OUT_OF_MEMORY and failure.step >= 0:
            return replace(now, memory=self.memory.next_attempt(failure.step, self.experiment))
        if failure.is_own and self.halved_for is None and self.memory.can_halve(self.experiment):
            memory = replace(self.memory, microbatch_splits=self.memory.microbatch_splits + 1)
            return replace(now, memory=memory, halved_for=failure)
        if failure.kind not in RETRYABLE:
            raise failure.error()
        now = replace(now, failures=now.failures + 1)
        if now.failures > limit:
            message = str(failure.error())
            if limit:
                message += (
                    f" ({now.failures} in a row without a new checkpoint; "
                    f"resources.max_failures={limit})"
                )
            raise RunFailed(message, kind=failure.kind.value)
        return now

    def message_for(self, failure: Failure) -> str:
        """Warning that names a failure and how the run goes on after it."""
        if failure.kind is FailureKind.OUT_OF_MEMORY:
            return self.memory.describe(failure.step, self.experiment)
        where = "the beginning"
        if self.saved_step >= 0:
            where = f"step {self.saved_step}"
        count = ""
        if failure.kind not in UNCOUNTED:
            count = f" ({self.failures} of {self.experiment.resources.max_failures})"
        if failure is self.halved_for:
            size = self.experiment.micro_size >> self.memory.microbatch_splits
            count = f" with micro-batches of {size}, the batch stays the same"
        return (
            f"{failure.kind.value.replace('_', ' ')}: {failure.message}; going on from "
            f"{where}{count}."
        )


def failure_from_record(record: Mapping[str, Any] | None) -> Failure | None:
    """The failure that a worker recorded before it ended, None if there is no record."""
    if record is None:
        return None
    kind = FailureKind(record["kind"])
    message = record["message"]
    if kind is FailureKind.CRASH:
        message = f"worker {record['rank']} failed: {message}\n{record['trace']}"
    return Failure(kind, message, record.get("step", -1))
