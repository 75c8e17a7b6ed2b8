"""Training throughput and the pace of progress reports."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PROGRESS_INTERVAL = 0.25  # seconds between progress reports
MEMORY = 30.0
"""Seconds of training after which a stretch counts for a third in the time left; a busy machine's differ tenfold."""


class ThroughputMeter:
    """Samples per second over the latest stretch of steps, without evaluations and saves."""

    def __init__(self, batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._batch_size, self._clock = batch_size, clock
        self._since, self._steps, self._reported = clock(), 0, 0.0
        self.samples_per_second = 0.0
        self.seconds_per_sample = 0.0
        """Average of which stretches fade within `MEMORY`: what the time left is told from."""

    def restart(self) -> None:
        """Begin a new stretch: the time since the last step was spent on something else."""
        self._since, self._steps = self._clock(), 0

    def count_step(self) -> None:
        """Count a finished step."""
        self._steps += 1
        elapsed = self._clock() - self._since
        if elapsed > 0 and (elapsed > 1.0 or not self.samples_per_second):
            samples = self._steps * self._batch_size
            share = 1 - math.exp(-elapsed / MEMORY) if self.seconds_per_sample else 1.0
            self.seconds_per_sample += share * (elapsed / samples - self.seconds_per_sample)
            self.samples_per_second = samples / elapsed
            self._since, self._steps = self._clock(), 0

    def is_report_due(self, force: bool) -> bool:
        """Return True if the latest progress report is older than PROGRESS_INTERVAL, or with `force`."""
        if force or self._clock() - self._reported > PROGRESS_INTERVAL:
            self._reported = self._clock()
            return True
        return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside from the throughput."""
        start = self._clock()
        try:
            yield
        finally:
            self._since += self._clock() - start
