"""Failures by the exceptions of Ray: a lost process, node or object, a node's memory, a bug, or what cannot pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ray import exceptions

from ditlab.cluster.channel import Heartbeat
from ditlab.runs.failures import Failure, FailureKind
from ditlab.secrets import hide

FINAL = {
    exceptions.RuntimeEnvSetupError: "correct the job's runtime environment, or install what it names on every node",
    exceptions.ActorUnschedulableError: "lower resources.workers or what each of them needs, or add nodes",
    exceptions.TaskUnschedulableError: "lower resources.workers or what each of them needs, or add nodes",
    exceptions.AuthenticationError: "give this process and every node the cluster's token",
}
"""Errors that another attempt would meet again, with their remedies."""
BUGS = (exceptions.CrossLanguageError, exceptions.UserCodeException, exceptions.UnserializableException)
"""Errors of the code that a process ran."""
_LOST_NODES = (exceptions.NodeDiedError, exceptions.LocalRayletDiedError)
_LONGEST, _LONGEST_COMMAND = 300, 80  # characters in a message


def unwrap(error: BaseException | None) -> BaseException | None:
    """The exception below what Ray's tasks and Ray Train's controller and health checks put around it."""
    for name in ("controller_failure", "health_check_failure"):
        if isinstance(inner := getattr(error, name, None), BaseException):
            return unwrap(inner)
    # Ray puts a bare RayError in the place of a cause that cannot be pickled: still a bug of the code.
    if isinstance(error, exceptions.RayTaskError) and type(error.cause) not in (exceptions.RayError, type(None)):
        return unwrap(error.cause)
    return error


def is_bug(error: BaseException) -> bool:
    """Return True for an exception of the code that a task or actor ran, as Ray passes it on."""
    raised = getattr(error, "health_check_failure", error)
    return isinstance(raised, (exceptions.RayTaskError, *BUGS)) and ray_failure(raised) is None


def ray_failure(error: BaseException | None, heartbeats: Sequence[Heartbeat] = ()) -> Failure | None:
    """Failure for an exception of Ray's own; None for an exception of the code that a process ran.

    `heartbeats` are those of the run's workers. What is in no list here counts as a lost worker, which is tried again.
    """
    error = unwrap(error)
    if not isinstance(error, exceptions.RayError) or isinstance(error, (exceptions.RayTaskError, *BUGS)):
        return None
    text = ""
    with suppress(AttributeError, TypeError):  # some are formatted from attributes that they may lack
        text = str(error)
    if shortage := MemoryShortage.from_message(text):
        return shortage.failure(heartbeats)
    what = ": ".join([type(error).__name__, *hide(text).strip().splitlines()[:1]])[:_LONGEST].rstrip(".")
    if isinstance(error, exceptions.OutOfMemoryError):
        return Failure(FailureKind.NODE_OUT_OF_MEMORY, what)
    for kind, remedy in FINAL.items():
        if isinstance(error, kind):
            return Failure(FailureKind.CANNOT_START, f"{what}; {remedy}")
    return Failure(FailureKind.LOST_NODE if isinstance(error, _LOST_NODES) else FailureKind.LOST_WORKER, what)


@dataclass(frozen=True)
class MemoryShortage:
    """What Ray's memory monitor says when it ends processes of a node whose memory is nearly used up."""

    used: str
    """Used and all memory of the node, as `5.15 of 23.54 GiB`; empty where it is not said."""
    threshold: str
    """Share of the memory above which processes are ended, in per cent; empty where it is not said."""
    node: str
    """Ray's id of the node."""
    users: Sequence[tuple[int, float, str]]
    """Processes that use the most: number, GiB, command line."""

    @classmethod
    def from_message(cls, text: str) -> MemoryShortage | None:
        """Read a message; None for any other one."""
        if "running low on memory" not in text:
            return None

        def found(pattern: str) -> str:
            match = re.search(pattern, text)
            return " of ".join(match.groups()) if match else ""

        users = re.findall(r"^(\d+)\t([\d.]+)\t(.*)$", text.partition("memory users:")[2], re.MULTILINE)
        return cls(
            found(r"was ([\d.]+)GB used / ([\d.]+)GB limit"), found(r"\(([\d.]+)% of \d+B limit\)"),
            found(r"\bID: ([0-9a-f]+)"), [(int(pid), float(size), command) for pid, size, command in users],
        )  # fmt: skip

    def failure(self, heartbeats: Sequence[Heartbeat]) -> Failure:
        """The failure of a run with these workers: its own where they together use more than any other process."""
        workers = {each.pid for each in heartbeats if each.node.startswith(self.node)}
        own = sum(size for pid, size, _ in self.users if pid in workers)
        other = max((user for user in self.users if user[0] not in workers), key=lambda user: user[1], default=None)
        is_own = own > 0 and (other is None or own >= other[1])
        used = f" ({self.used} GiB in use)" if self.used else ""
        limit = f", where Ray ends processes above {self.threshold} %" if self.threshold else ""
        who, remedy = "", "end other work there"
        if is_own:
            who = f"; this run's workers use the most, {own:g} GiB"
            remedy = "lower batch.micro or the model's size, or take more or larger nodes"
        elif other:
            pid, size, command = other
            who = f"; process {pid} uses the most, {size:g} GiB: {hide(command)[:_LONGEST_COMMAND].strip()}"
        message = (
            f"a node's memory is nearly used up{used}{limit}{who}; {remedy}, or raise RAY_memory_usage_threshold where "
            "Ray is started"
        )
        return Failure(FailureKind.NODE_OUT_OF_MEMORY, message, is_own=is_own)
