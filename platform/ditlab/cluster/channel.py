"""Key-value channel between launcher and workers, in the store that every Ray cluster has, and what waits on it.

Requests to stop, as a worker finds them, and the gate of a sweep's trial, closed after each evaluation until the
sweep's scheduler lets the trial continue.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray

from ditlab.cluster.ray_internals import kv_delete, kv_get, kv_put
from ditlab.training.reporting import ProgressMarker

CHANNEL_ERRORS = (ConnectionError, RuntimeError, ray.exceptions.RayError)
"""Exceptions of Ray's key-value store while it cannot be reached."""

# Values of the topic `stop`: stopped by a person; the worker's node is taken away; ended for good by a sweep's
# scheduler; paused by a sweep's scheduler.
INTERRUPTED, PREEMPTED, STOPPED, PAUSED = "interrupted", "preempted", "stopped", "paused"
STOP_POLL_INTERVAL = 0.5  # seconds
GATE_POLL_INTERVAL = 0.05  # seconds


class KeyValueChannel:
    """JSON values by topic, under one name, such as that of a launch; each group of workers has a channel below it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def put(self, topic: str, value: Any) -> None:
        """Set a topic's value."""
        kv_put(self._key(topic), json.dumps(value).encode())

    def try_put(self, topic: str, value: Any) -> None:
        """Set a topic's value, or drop it where the store cannot be reached: news must not cost a training step."""
        with suppress(*CHANNEL_ERRORS):
            self.put(topic, value)

    def put_if_absent(self, topic: str, value: Any) -> None:
        """Set a topic's value unless it has one: the first worker to fail records the cause, the others only follow."""
        kv_put(self._key(topic), json.dumps(value).encode(), overwrite=False)

    def get(self, topic: str) -> Any:
        """Value of a topic, None without one."""
        value = kv_get(self._key(topic))
        return None if value is None else json.loads(value)

    def remove(self, topic: str) -> None:
        """Delete a topic."""
        kv_delete(self._key(topic))

    def clear(self) -> None:
        """Delete every topic of this channel and of those below it."""
        kv_delete(self._key(""), by_prefix=True)

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


class SchedulerGate:
    """Reports evaluations to the sweep, and blocks while its scheduler decides. Always open for a run of its own."""

    def __init__(
        self, channel: str, gated: bool, is_stopping: Callable[[], bool], marker: ProgressMarker, timeout: float
    ) -> None:
        """Gate of the trial with the channel of this name; empty for a run of its own.

        `gated`: whether training waits after an evaluation. `timeout` bounds a single wait, in seconds.
        """
        self._channel = KeyValueChannel(channel) if channel else None
        self._is_gated, self._is_stopping = gated, is_stopping
        self._marker, self._timeout = marker, timeout

    def report(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Report an evaluation and wait for the scheduler. Returns True if training still has to wait."""
        if self._channel is None:
            return False
        self._marker.begin(step, "waiting for the sweep's scheduler", is_untimed=True)
        self._channel.try_put("report", {"step": step, "metrics": dict(metrics)})
        deadline, allowed_step = time.monotonic() + self._timeout, 0
        while self._is_gated and not self._is_stopping():
            with suppress(*CHANNEL_ERRORS):
                allowed_step = self._channel.get("go") or 0
            if allowed_step >= step:
                return False
            if time.monotonic() > deadline:
                return True
            time.sleep(GATE_POLL_INTERVAL)
        return False
