"""Record of an exception that ended a worker, for the launcher."""

import traceback
from typing import Any

from ditlab.cluster.workers.channel import KeyValueChannel
from ditlab.engine.distributed import is_peer_loss
from ditlab.errors import RunFailed, StorageOutage, Unreachable, UserError
from ditlab.secrets import hide
from ditlab.training.recovery import OutOfMemory


def record_failure(error: Exception, rank: int, resumed: bool, group: KeyValueChannel) -> None:
    """Put an exception on the group's channel, unless an earlier failure is recorded there.

    The loss of another worker is recorded apart, as its cause lies elsewhere.
    """
    if is_peer_loss(error):
        first = str(error).splitlines()[0].split(". ")[0]  # the rest is gloo's advice
        group.put_if_absent("peer_loss", hide(f"worker {rank}: {first[:300]}"))
        return
    record = {"rank": rank, **_describe(error, resumed)}
    texts = {key: hide(record[key]) for key in ("message", "trace") if key in record}
    group.put_if_absent("failure", {**record, **texts})


def _describe(error: Exception, resumed: bool) -> dict[str, Any]:
    """Kind and message of an exception, as `runs.failures.failure_from_record` reads them."""
    if isinstance(error, StorageOutage) or (isinstance(error, Unreachable) and resumed):
        return {"kind": "storage_unreachable", "message": str(error)}
    if isinstance(error, UserError):
        return {"kind": "user_error", "message": str(error)}
    if isinstance(error, RunFailed):
        return {"kind": error.kind, "message": str(error), "trace": ""}
    if isinstance(error, OutOfMemory):
        return {"kind": "out_of_memory", "message": error.message, "step": error.step}
    return {"kind": "crash", "message": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
