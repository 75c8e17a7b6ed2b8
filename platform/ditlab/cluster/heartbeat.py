"""Heartbeats of a launch's workers: written by each worker, read by the launcher; hangs are detected purely."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import psutil
import ray

from ditlab.cluster.channel import CHANNEL_ERRORS, KeyValueChannel
from ditlab.training.reporting import ProgressMarker

MAX_INTERVAL = 2.0  # seconds between heartbeats: the last one says where a lost worker was


@dataclass(frozen=True)
class Heartbeat:
    """Latest state of one worker."""

    rank: int
    pid: int
    node: str
    """Ray's id of the worker's node."""
    written: float
    """Time of this heartbeat, seconds since 1970 by the node's clock: compared with the same worker's only."""
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
    """Thread of a worker that writes heartbeats until `stop`."""

    def __init__(self, channel: KeyValueChannel, rank: int, marker: ProgressMarker, hang_timeout: float) -> None:
        super().__init__(name="ditlab-heartbeat", daemon=True)
        self._channel, self._rank, self._marker = channel, rank, marker
        self._topic, self._interval = f"heartbeat/{rank}", heartbeat_interval(hang_timeout)
        self._node = ray.get_runtime_context().get_node_id()
        self._process_start = psutil.Process().create_time()
        self._stopped = threading.Event()

    def run(self) -> None:
        marker = self._marker
        while True:
            heartbeat = Heartbeat(
                self._rank, os.getpid(), self._node, time.time(), marker.step, marker.activity, marker.num_begun,
                marker.num_done, marker.idle, self._process_start,
            )  # fmt: skip
            self._channel.try_put(self._topic, asdict(heartbeat))
            if self._stopped.wait(self._interval):
                return

    def stop(self) -> None:
        """End the thread and delete the heartbeat: a worker that is done is not silent."""
        self._stopped.set()
        self.join()
        with suppress(*CHANNEL_ERRORS):
            self._channel.remove(self._topic)


def read_heartbeats(channel: KeyValueChannel, num_workers: int) -> list[Heartbeat]:
    """Latest heartbeat of each worker that has written one."""
    found = (channel.get(f"heartbeat/{rank}") for rank in range(num_workers))
    return [Heartbeat(**values) for values in found if values]


def heartbeat_interval(hang_timeout: float) -> float:
    """Seconds between heartbeats, for a timeout after which a silent worker counts as hung."""
    return min(MAX_INTERVAL, hang_timeout / 8)


class HangDetector:
    """Finds workers that are silent, or without progress, for longer than `hang_timeout` seconds."""

    def __init__(self, hang_timeout: float) -> None:
        self._timeout = hang_timeout
        self._seen: dict[int, tuple[float, float]] = {}
        """Times at which each rank's latest heartbeat was written, and first seen."""

    def hung_workers(self, heartbeats: Sequence[Heartbeat], now: float) -> list[Heartbeat]:
        """Heartbeats of the workers that hang, none as long as all is well. `now` is monotonic, in seconds.

        A process that is stopped or cut off writes no more heartbeats. One whose step loop hangs writes heartbeats
        without progress, and so do all that wait for it: the worker that is least far is the one that hangs.
        """
        for each in heartbeats:
            if self._seen.get(each.rank, (0.0, 0.0))[0] != each.written:
                self._seen[each.rank] = (each.written, now)
        silent = [each for each in heartbeats if now - self._seen[each.rank][1] > self._timeout]
        if silent or not heartbeats or any(each.idle <= self._timeout for each in heartbeats):
            return silent
        least = min((each.num_begun, each.num_done) for each in heartbeats)
        return [each for each in heartbeats if (each.num_begun, each.num_done) == least]
