"""Signs of life: how far a worker has come, for whoever looks for one that hangs."""

import time
from dataclasses import dataclass, field


@dataclass
class Pulse:
    """Written by the step loop, read by another thread of the same process."""

    step: int = 0
    doing: str = "starting"
    count: int = 0
    """Grows with everything that gets done, equally on all workers: the one with the least is behind."""
    since: float = field(default_factory=time.monotonic)
    """Monotonic time of the last change."""

    def at(self, step: int, doing: str) -> None:
        """The loop begins something."""
        self.step, self.doing = step, doing
        self.beat()

    def beat(self) -> None:
        """A part of it is done."""
        self.count += 1
        self.since = time.monotonic()
