"""Signs of life: how far a worker has come, for whoever looks for one that hangs."""

import time
from dataclasses import dataclass, field


@dataclass
class Pulse:
    """Written by the step loop, read by another thread of the same process."""

    step: int = 0
    doing: str = "starting"
    laps: int = 0
    """Things begun, equally many on workers that are equally far."""
    beats: int = 0
    """Parts of the latest that are done."""
    since: float = field(default_factory=time.monotonic)
    """Monotonic time of the last change."""
    is_patient: bool = True
    """Whether what is being done may take any time: building, loading and saving depend on disks and networks."""

    def at(self, step: int, doing: str, is_patient: bool = False) -> None:
        """The loop begins something."""
        self.step, self.doing, self.is_patient = step, doing, is_patient
        self.laps, self.beats, self.since = self.laps + 1, 0, time.monotonic()

    def beat(self) -> None:
        """A part of it is done."""
        self.beats, self.since = self.beats + 1, time.monotonic()

    @property
    def idle(self) -> float:
        """Seconds since something was done that should have been; 0 where patience is due."""
        return 0.0 if self.is_patient else time.monotonic() - self.since
