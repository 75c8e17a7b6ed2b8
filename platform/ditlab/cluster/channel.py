"""Key-value channel between launcher and workers, in the store that every Ray cluster has, and what
passes on it.

Workers write heartbeats and hear when to stop; the launcher detects those that hang.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import ray

from ditlab.cluster.ray_internals import key_value
from ditlab.cluster.session import lost_ray
from ditlab.training.reporting import ProgressMarker

CHANNEL_ERRORS = (ConnectionError, RuntimeError, ray.exceptions.RayError)
"""Exceptions of Ray's key-value store while it cannot be reached."""

# Values of the topic `stop`: stopped by a person; the worker's node is taken away; ended for good
# by a sweep's scheduler; paused by a sweep's scheduler.
INTERRUPTED = "interrupted"
PREEMPTED = "preempted"
STOPPED = "stopped"
PAUSED = "paused"
STOP_POLL_INTERVAL = 0.5  # seconds between two searches for requests to stop
MAX_INTERVAL = 2.0  # seconds between heartbeats: the last one says where a lost worker was


terminated = threading.Event()
"""Set once a signal asked this worker to end: from who ends its node, or all processes of a Slurm
step or a service.
"""


@dataclass(frozen=True)
class KeyValueChannel:
    """JSON values by topic, under one name, such as that of a launch; each group of workers has a
    channel below it.
    """

    name: str

    def put(self, topic: str, value: Any, overwrite: bool = True) -> None:
        """Set a topic's value; without `overwrite`, unless it has one."""
        key_value("put")(self._key(topic), json.dumps(value).encode(), overwrite=overwrite)

    def try_put(self, topic: str, value: Any) -> None:
        """Set a topic's value, or drop it where the store cannot be reached: a message must not
        cost a training step.
        """
        with suppress(*CHANNEL_ERRORS):
            self.put(topic, value)

    def get(self, topic: str) -> Any:
        """Value of a topic, None without one."""
        value = key_value("get")(self._key(topic))
        if value is None:
            return None
        return json.loads(value)

    def remove(self, topic: str) -> None:
        """Delete a topic."""
        key_value("del")(self._key(topic))

    def topics(self) -> list[str]:
        """Topics of this channel and of those below it that have a value."""
        prefix = self._key("")
        return [key[len(prefix) :].decode() for key in key_value("list")(prefix)]

    def clear(self) -> None:
        """Delete every topic of this channel and of those below it."""
        key_value("del")(self._key(""), del_by_prefix=True)

    def child(self, name: str) -> KeyValueChannel:
        """Channel of one group of workers, without the values of an earlier group."""
        return KeyValueChannel(f"{self.name}/{name}")

    def _key(self, topic: str) -> bytes:
        lost = lost_ray()
        if lost:  # a call would wait for a minute
            raise ConnectionError(lost)
        assert ray.is_initialized()
        return f"{self.name}/{topic}".encode()


@dataclass(frozen=True)
class Heartbeat:
    """Latest state of one worker."""

    rank: int
    pid: int
    node: str
    """Ray's id of the worker's node."""
    written: float
    """Time of this heartbeat, seconds since 1970 by the node's clock: compared with the same
    worker's only.
    """
    step: int
    activity: str
    num_begun: int
    num_done: int
    """(num_begun, num_done) is equal on workers that are equally far."""
    idle: float
    """Seconds without progress in an activity that should make some."""
    process_start: float = 0.0
    """Start time of the process: its number may be another process's by now."""


class HeartbeatThread(threading.Thread):
    """Thread of a worker that writes heartbeats and polls the topic `stop`, off the training
    thread, until `end`.
    """

    def __init__(
        self, group: KeyValueChannel, control: KeyValueChannel, rank: int, hang_timeout: float
    ) -> None:
        """Heartbeats go to `group`, requests to stop come by `control`."""
        super().__init__(name="ditlab-heartbeat", daemon=True)
        self._group = group
        self._control = control
        self._rank = rank
        self.marker = ProgressMarker()
        self._topic = f"heartbeat/{rank}"
        self._interval = heartbeat_interval(hang_timeout)
        self._node = ray.get_runtime_context().get_node_id()
        self._process_start = psutil.Process().create_time()
        self._ended = threading.Event()
        self.stop_reason = ""
        """Latest reason to stop; empty for none."""

    def run(self) -> None:
        marker = self.marker
        due = 0.0
        while True:
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                heartbeat = Heartbeat(
                    self._rank,
                    os.getpid(),
                    self._node,
                    time.time(),
                    marker.step,
                    marker.activity,
                    marker.num_begun,
                    marker.num_done,
                    marker.idle,
                    self._process_start,
                )
                self._group.try_put(self._topic, asdict(heartbeat))
            with suppress(Exception):  # whatever the read raises, heartbeats go on
                # A person's request may follow that of the cluster.
                self.stop_reason = self._control.get("stop") or self.stop_reason
            if self._ended.wait(min(STOP_POLL_INTERVAL, self._interval)):
                return

    def should_stop(self) -> bool:
        """Return True once the worker shall stop: on request, or because a signal asked its process
        to end.
        """
        if terminated.is_set():
            self.stop_reason = self.stop_reason or PREEMPTED
        return bool(self.stop_reason)

    def end(self) -> None:
        """End the thread and delete the heartbeat: a worker that is done is not silent."""
        self._ended.set()
        self.join()
        with suppress(*CHANNEL_ERRORS):
            self._group.remove(self._topic)


def read_heartbeats(channel: KeyValueChannel, num_workers: int) -> list[Heartbeat]:
    """Latest heartbeat of each worker that has written one."""
    found = (channel.get(f"heartbeat/{rank}") for rank in range(num_workers))
    return [Heartbeat(**values) for values in found if values]


def heartbeat_interval(hang_timeout: float) -> float:
    """Seconds between heartbeats, for a timeout after which a silent worker counts as hung."""
    return min(MAX_INTERVAL, hang_timeout / 8)


@dataclass
class HangDetector:
    """Finds workers that are silent, or without progress, for longer than `hang_timeout`
    seconds.
    """

    hang_timeout: float
    _seen: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Times at which each rank's latest heartbeat was written, and first seen."""

    def hung_workers(self, heartbeats: Sequence[Heartbeat], now: float) -> list[Heartbeat]:
        """Heartbeats of the workers that hang, none as long as all is well. `now` is monotonic, in
        seconds.

        A process that is stopped or cut off writes no more heartbeats. One whose step loop hangs
        writes heartbeats without progress, and so do all that wait for it: the worker that is least
        far is the one that hangs.
        """
        for each in heartbeats:
            if self._seen.get(each.rank, (0.0, 0.0))[0] != each.written:
                self._seen[each.rank] = (each.written, now)
        silent = [each for each in heartbeats if now - self._seen[each.rank][1] > self.hang_timeout]
        all_idle = all(each.idle > self.hang_timeout for each in heartbeats)
        if silent or not heartbeats or not all_idle:
            return silent
        least = min((each.num_begun, each.num_done) for each in heartbeats)
        return [each for each in heartbeats if (each.num_begun, each.num_done) == least]
