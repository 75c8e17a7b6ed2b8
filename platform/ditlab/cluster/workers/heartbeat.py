"""Signs of life of a launch's workers: written by each worker, read by the launcher, judged purely."""

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import psutil
import ray

from ditlab.training.progress_marker import Pulse

if TYPE_CHECKING:
    from ditlab.cluster.workers.channel import Board

# What Ray's key-value store raises while it cannot be reached.
UNHEARD = (ConnectionError, RuntimeError, ray.exceptions.RayError)
LONGEST_SILENCE = 2.0  # seconds between signs, at most: the last one says where a lost worker was


@dataclass(frozen=True)
class Sign:
    """One worker's latest."""

    rank: int
    pid: int
    node: str
    """Ray's id of its node."""
    written: float
    """Of the sign, seconds since 1970 on its node: compared with itself only."""
    step: int
    doing: str
    laps: int
    beats: int
    """How far it has come: (laps, beats) is equal on workers that are equally far."""
    idle: float
    """Seconds since something was done that should have been."""
    born: float = 0.0
    """When the process was started: its number may be another's by now."""


class Signs(threading.Thread):
    """A worker's thread that puts a sign on the board now and then, until `stop`."""

    def __init__(self, board: "Board", rank: int, pulse: Pulse, timeout: float) -> None:
        super().__init__(name="ditlab-signs", daemon=True)
        self._board, self._rank, self._pulse = board, rank, pulse
        self._pause = interval(timeout)
        self._node = ray.get_runtime_context().get_node_id()
        self._born = psutil.Process().create_time()
        self._over = threading.Event()

    def run(self) -> None:
        while True:
            pulse = self._pulse
            sign = Sign(
                self._rank, os.getpid(), self._node, time.time(), pulse.step, pulse.doing, pulse.laps, pulse.beats,
                pulse.idle, self._born,
            )  # fmt: skip
            with suppress(*UNHEARD):  # the next one may be
                self._board.put(f"sign/{self._rank}", asdict(sign))
            if self._over.wait(self._pause):
                return

    def stop(self) -> None:
        """Takes the sign away: who is done is not silent."""
        self._over.set()
        self.join()
        with suppress(*UNHEARD):
            self._board.remove(f"sign/{self._rank}")


def interval(timeout: float) -> float:
    """Seconds between signs, for a time after which silence means something."""
    return min(LONGEST_SILENCE, timeout / 8)


class Watchman:
    """Judges signs: who is silent, or has done nothing for longer than `timeout` seconds?"""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._heard: dict[int, tuple[float, float]] = {}

    def hung(self, signs: Sequence[Sign], now: float) -> list[Sign]:
        """The workers to blame, none as long as all is well. `now` is monotonic, in seconds.

        A process that is stopped or cut off gives no more signs. One whose step loop hangs gives signs of no progress,
        and so do all that wait for it: the one that has come least far is to blame.
        """
        for sign in signs:
            written, _ = self._heard.get(sign.rank, (0.0, 0.0))
            if sign.written != written:
                self._heard[sign.rank] = (sign.written, now)
        silent = [sign for sign in signs if now - self._heard[sign.rank][1] > self._timeout]
        if silent:
            return silent
        if signs and all(sign.idle > self._timeout for sign in signs):
            least = min((sign.laps, sign.beats) for sign in signs)
            return [sign for sign in signs if (sign.laps, sign.beats) == least]
        return []
