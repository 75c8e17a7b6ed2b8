"""Key-value channel between launcher and workers, in the store that every Ray cluster has.

Progress, outcome and heartbeats go to the launcher, requests to stop go to the workers. No actor, so nothing to start
or place.
"""

import json
from contextlib import suppress
from typing import Any

import ray
from ray.experimental import internal_kv

NAMESPACE = b"ditlab"

CHANNEL_ERRORS = (ConnectionError, RuntimeError, ray.exceptions.RayError)
"""Exceptions of Ray's key-value store while it cannot be reached."""

# Values of the topic `stop`: stopped by a person; the worker's node is taken away; ended for good by a sweep's
# scheduler; paused by a sweep's scheduler.
INTERRUPTED, PREEMPTED, STOPPED, PAUSED = "interrupted", "preempted", "stopped", "paused"


class KeyValueChannel:
    """JSON values by topic, under one name, such as that of a launch; each group of workers has a channel below it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, topic: str, value: Any) -> None:
        """Set a topic's value."""
        internal_kv._internal_kv_put(self._key(topic), json.dumps(value).encode(), overwrite=True, namespace=NAMESPACE)

    def try_put(self, topic: str, value: Any) -> None:
        """Set a topic's value, or drop it where the store cannot be reached: news must not cost a training step."""
        with suppress(*CHANNEL_ERRORS):
            self.put(topic, value)

    def put_if_absent(self, topic: str, value: Any) -> None:
        """Set a topic's value unless it has one: the first worker to fail records the cause, the others only follow."""
        content = json.dumps(value).encode()
        internal_kv._internal_kv_put(self._key(topic), content, overwrite=False, namespace=NAMESPACE)

    def get(self, topic: str) -> Any:
        """Value of a topic, None without one."""
        value = internal_kv._internal_kv_get(self._key(topic), namespace=NAMESPACE)
        return None if value is None else json.loads(value)

    def remove(self, topic: str) -> None:
        """Delete a topic."""
        internal_kv._internal_kv_del(self._key(topic), namespace=NAMESPACE)

    def clear(self) -> None:
        """Delete every topic of this channel and of those below it."""
        internal_kv._internal_kv_del(self._key(""), del_by_prefix=True, namespace=NAMESPACE)

    def child(self, name: str) -> "KeyValueChannel":
        """Channel of one group of workers, without the values of an earlier group."""
        return KeyValueChannel(f"{self.name}/{name}")

    def _key(self, topic: str) -> bytes:
        assert ray.is_initialized()
        return f"{self.name}/{topic}".encode()
