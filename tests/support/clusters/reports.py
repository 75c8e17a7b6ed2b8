"""Reports of a cluster's nodes and workers on themselves, made by hand."""

from typing import Any

from ditlab.cluster.channel import Heartbeat
from ditlab.cluster.survey import NodeReport, NodeRequirements
from ditlab.cluster.worker_body import record_failure

OWN = {
    "python": "3.11.7",
    "ray": "2.60.0",
    "torch": "2.8.0",
    "deepspeed": "0.19.8",
    "mlflow": "3.17.2",
    "ditlab": "0.1.0-3f9a01bc22d4",
    "wavelets": "1.2",
    "ditlab_models/wave": "folder",
}
"""With a package and a folder of the experiment's parts, which decide what is trained."""
GOOD = NodeReport("gpu-1 (10.0.0.7/3f9a01bc)", True, OWN)
HEAD = NodeReport("head", False, {"python": "3.11.7", "ray": "2.60.0"}, "No module named 'ditlab'")
REQUIRED = NodeRequirements(OWN, "/shared/runs", "/shared/checkpoints")


def heartbeat(
    rank: int, node: str = "a", written: float = 1.0, num_done: int = 5, idle: float = 0.0
) -> Heartbeat:
    """Return the report of a worker with process id 1000 + rank at step 3, with seven events."""
    return Heartbeat(rank, 1000 + rank, node, written, 3, "training", 7, num_done, idle)


class Values(dict[str, Any]):
    """A channel in memory."""

    def put(self, topic: str, value: Any, overwrite: bool) -> None:
        assert not overwrite
        self.setdefault(topic, value)


def recorded(error: Exception, resumed: bool = False) -> Values:
    """Return a channel with the record that worker 1 leaves as it fails."""
    channel = Values()
    try:
        raise error
    except Exception as caught:
        record_failure(caught, 1, resumed, channel)
    return channel
