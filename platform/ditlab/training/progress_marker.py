"""Progress marker of a worker: its step and current activity, from which a hang is detected."""

import time
from dataclasses import dataclass, field


@dataclass
class ProgressMarker:
    """Current activity of one worker; written by the step loop, read by the heartbeat thread of the same process."""

    step: int = 0
    activity: str = "starting"
    num_begun: int = 0
    """Activities begun so far; equal on workers that are equally far."""
    num_done: int = 0
    """Parts of the current activity that are done."""
    since: float = field(default_factory=time.monotonic)
    """Monotonic time of the last change."""
    is_untimed: bool = True
    """True while the activity may take any time: building, loading and saving depend on disks and networks."""

    def begin(self, step: int, activity: str, is_untimed: bool = False) -> None:
        """Record that the step loop begins an activity."""
        self.step, self.activity, self.is_untimed = step, activity, is_untimed
        self.num_begun, self.num_done, self.since = self.num_begun + 1, 0, time.monotonic()

    def tick(self) -> None:
        """Record that a part of the current activity is done."""
        self.num_done, self.since = self.num_done + 1, time.monotonic()

    @property
    def idle(self) -> float:
        """Seconds since the last change; 0 during an activity that may take any time."""
        return 0.0 if self.is_untimed else time.monotonic() - self.since
