"""Key-value channel between launcher and workers, in the store that every Ray cluster has; requests to stop on it."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from typing import Any

import ray

from ditlab.cluster.ray_internals import key_value

CHANNEL_ERRORS = (ConnectionError, RuntimeError, ray.exceptions.RayError)
"""Exceptions of Ray's key-value store while it cannot be reached."""

# Values of the topic `stop`: stopped by a person; the worker's node is taken away; ended for good by a sweep's
# scheduler; paused by a sweep's scheduler.
INTERRUPTED, PREEMPTED, STOPPED, PAUSED = "interrupted", "preempted", "stopped", "paused"
STOP_POLL_INTERVAL = 0.5  # seconds


class KeyValueChannel:
    """JSON values by topic, under one name, such as that of a launch; each group of workers has a channel below it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, topic: str, value: Any, overwrite: bool = True) -> None:
        """Set a topic's value; without `overwrite`, unless it has one."""
        key_value("put")(self._key(topic), json.dumps(value).encode(), overwrite=overwrite)

    def try_put(self, topic: str, value: Any) -> None:
        """Set a topic's value, or drop it where the store cannot be reached: news must not cost a training step."""
        with suppress(*CHANNEL_ERRORS):
            self.put(topic, value)

    def get(self, topic: str) -> Any:
        """Value of a topic, None without one."""
        value = key_value("get")(self._key(topic))
        return None if value is None else json.loads(value)

    def remove(self, topic: str) -> None:
        """Delete a topic."""
        key_value("del")(self._key(topic))

    def clear(self) -> None:
        """Delete every topic of this channel and of those below it."""
        key_value("del")(self._key(""), del_by_prefix=True)

    def child(self, name: str) -> KeyValueChannel:
        """Channel of one group of workers, without the values of an earlier group."""
        return KeyValueChannel(f"{self.name}/{name}")

    def _key(self, topic: str) -> bytes:
        assert ray.is_initialized()
        return f"{self.name}/{topic}".encode()


class StopPoller:
    """Thread that polls the topic `stop`, off the training thread. Use as a context manager."""

    def __init__(self, channel: KeyValueChannel) -> None:
        self._channel, self._requested, self._ended = channel, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._poll, name="stop-poller", daemon=True)
        self.is_set = self._requested.is_set
        self.reason = ""

    def _poll(self) -> None:
        while not self._ended.wait(STOP_POLL_INTERVAL):
            with suppress(*CHANNEL_ERRORS):
                if reason := self._channel.get("stop"):
                    self.reason = reason  # a person's request may follow that of the cluster
                    self._requested.set()

    def __enter__(self) -> StopPoller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
