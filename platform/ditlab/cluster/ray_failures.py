"""Failures by the exceptions of Ray: a lost process, node or object, a node's memory, a bug, or
what cannot pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from ray import exceptions

from ditlab.cluster.channel import Heartbeat
from ditlab.runs.failures import Failure, FailureKind
from ditlab.secrets import hide

_TOO_LARGE = "lower resources.workers or what each of them needs, or add nodes"
FINAL = {
    exceptions.RuntimeEnvSetupError: (
        "correct the job's runtime environment, or install what it names on every node"
    ),
    exceptions.ActorUnschedulableError: _TOO_LARGE,
    exceptions.TaskUnschedulableError: _TOO_LARGE,
    exceptions.AuthenticationError: "give this process and every node the cluster's token",
}
"""Errors that another attempt would meet again, with their remedies."""
BUGS = (
    exceptions.CrossLanguageError,
    exceptions.UserCodeException,
    exceptions.UnserializableException,
)
"""Errors of the code that a process ran."""
_LOST_NODES = (exceptions.NodeDiedError, exceptions.LocalRayletDiedError)
# characters in a message
_LONGEST = 300
_LONGEST_COMMAND = 80


def unwrap(error: BaseException | None) -> BaseException | None:
    """The exception below what Ray's tasks and Ray Train's controller and health checks put around
    it.
    """
    for name in ("controller_failure", "health_check_failure"):
        inner = getattr(error, name, None)
        if isinstance(inner, BaseException):
            return unwrap(inner)
    if isinstance(error, exceptions.RayTaskError):
        # Ray puts a bare RayError in the place of a cause that cannot be pickled: still a bug of
        # the code.
        has_cause = type(error.cause) not in (exceptions.RayError, type(None))
        if has_cause:
            return unwrap(error.cause)
    return error


def is_bug(error: BaseException) -> bool:
    """Return True for an exception of the code that a task or actor ran, as Ray passes it on."""
    raised = getattr(error, "health_check_failure", error)
    return isinstance(raised, (exceptions.RayTaskError, *BUGS)) and ray_failure(raised) is None


def ray_failure(
    error: BaseException | None, heartbeats: Sequence[Heartbeat] = ()
) -> Failure | None:
    """Failure for an exception of Ray's own; None for an exception of the code that a process ran.

    `heartbeats` are those of the run's workers. An exception in no list here counts as a lost
    worker, after which the run is attempted again.
    """
    error = unwrap(error)
    if not isinstance(error, exceptions.RayError):
        return None
    if isinstance(error, (exceptions.RayTaskError, *BUGS)):
        return None
    text = ""
    with suppress(AttributeError, TypeError):  # some are formatted from attributes that they lack
        text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "running low on memory" in text:
        return node_memory_failure(text, heartbeats)
    what = ": ".join([type(error).__name__, *hide(text).strip().splitlines()[:1]])
    what = what[:_LONGEST].rstrip(".")
    for kind, remedy in FINAL.items():
        if isinstance(error, kind):
            return Failure(FailureKind.CANNOT_START, f"{what}; {remedy}")
    if isinstance(error, _LOST_NODES):
        return Failure(FailureKind.LOST_NODE, what)
    return Failure(FailureKind.LOST_WORKER, what)


def node_memory_failure(text: str, heartbeats: Sequence[Heartbeat]) -> Failure:
    """Failure for what Ray's memory monitor says when it ends processes of a node whose memory is
    nearly used up.

    The run's own workers are the cause where they together use more than any other process.
    """
    node = re.search(r"\bID: ([0-9a-f]+)", text)
    # of ten processes
    users = re.findall(r"^(\d+)\t([\d.]+)\t(.*)$", text.partition("memory users:")[2], re.MULTILINE)
    workers = {str(each.pid) for each in heartbeats if node and each.node.startswith(node[1])}
    own = sum(float(size) for pid, size, _ in users if pid in workers)
    others = [(float(size), pid, command) for pid, size, command in users if pid not in workers]
    is_own = own > 0 and own >= max(others, default=(0.0,))[0]
    message = "a node's memory is nearly used up"
    remedy = "end other work there"
    if is_own:
        message += f"; this run's workers use the most, {own:g} GiB"
        remedy = "lower batch.micro or the model's size, or take more or larger nodes"
    elif others:
        size, pid, command = max(others)
        message += (
            f"; process {pid} uses the most, {size:g} GiB: "
            f"{hide(command)[:_LONGEST_COMMAND].strip()}"
        )
    message += f"; {remedy}, or raise RAY_memory_usage_threshold where Ray is started"
    return Failure(FailureKind.NODE_OUT_OF_MEMORY, message, is_own=is_own)
