"""A few small words between driver and workers, over the key-value store that every Ray cluster has.

Progress, outcome and signs of life go to the driver, the wish to stop to the workers. No actor, so nothing to start or
place.
"""

import json
from dataclasses import asdict
from typing import Any

import ray
from ray.experimental import internal_kv

from ditlab.cluster.workers.heartbeat import Sign
from ditlab.training.reporting import Progress

NAMESPACE = b"ditlab"

# Why a launch shall stop, as the topic `stop` has it: by a person; with its node; for good, by a sweep's scheduler; for
# a while, by a sweep's scheduler.
INTERRUPTED, PREEMPTED, STOPPED, PAUSED = "interrupted", "preempted", "stopped", "paused"


class Board:
    """The words of one launch of a run; below it, a board for each group of workers that carries it on."""

    def __init__(self, launch: str) -> None:
        self.launch = launch

    def put(self, topic: str, value: Any) -> None:
        internal_kv._internal_kv_put(self._key(topic), json.dumps(value).encode(), overwrite=True, namespace=NAMESPACE)

    def group(self, name: str) -> "Board":
        """The board of one group of workers: what an earlier group said is not on it."""
        return Board(f"{self.launch}/{name}")

    def remove(self, topic: str) -> None:
        internal_kv._internal_kv_del(self._key(topic), namespace=NAMESPACE)

    def put_first(self, topic: str, value: Any) -> None:
        """Put, unless something is there: the first worker to fail says why, the others only that it is gone."""
        content = json.dumps(value).encode()
        internal_kv._internal_kv_put(self._key(topic), content, overwrite=False, namespace=NAMESPACE)

    def get(self, topic: str) -> Any:
        value = internal_kv._internal_kv_get(self._key(topic), namespace=NAMESPACE)
        return None if value is None else json.loads(value)

    def put_progress(self, progress: Progress) -> None:
        self.put("progress", asdict(progress))

    def get_progress(self) -> Progress | None:
        value = self.get("progress")
        return Progress(**value) if value else None

    def get_signs(self, num_workers: int) -> list[Sign]:
        """The latest sign of each worker that has given one."""
        found = (self.get(f"sign/{rank}") for rank in range(num_workers))
        return [Sign(**values) for values in found if values]

    def clear(self) -> None:
        """Takes every word of this launch away."""
        internal_kv._internal_kv_del(self._key(""), del_by_prefix=True, namespace=NAMESPACE)

    def _key(self, topic: str) -> bytes:
        assert ray.is_initialized()
        return f"{self.launch}/{topic}".encode()
