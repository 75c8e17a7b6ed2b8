"""How fast a run goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PROGRESS_INTERVAL = 0.25  # seconds between progress reports


class Speedometer:
    """Samples a second over the last stretch of steps, evaluations and saves left out."""

    def __init__(self, batch_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._batch_size, self._clock = batch_size, clock
        self._since, self._steps, self._reported = clock(), 0, 0.0
        self.samples_per_second = 0.0

    def restart(self) -> None:
        """What was done since the last step was something else."""
        self._since, self._steps = self._clock(), 0

    def tick(self) -> None:
        """A step is done."""
        self._steps += 1
        elapsed = self._clock() - self._since
        if elapsed > 0 and (elapsed > 1.0 or not self.samples_per_second):
            self.samples_per_second = self._steps * self._batch_size / elapsed
            self._since, self._steps = self._clock(), 0

    def due(self, force: bool) -> bool:
        """Whether it is time for news again."""
        if force or self._clock() - self._reported > PROGRESS_INTERVAL:
            self._reported = self._clock()
            return True
        return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, time does not count."""
        start = self._clock()
        try:
            yield
        finally:
            self._since += self._clock() - start
