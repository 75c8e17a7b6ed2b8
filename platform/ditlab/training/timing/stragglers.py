"""Rule by which a slow worker is named. Pure: it decides from the phases' times alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FACTOR = 1.5
"""Times the median of the other workers that a slow worker's own work takes."""
LEAST_STEPS = 5
"""Steps in a row."""
LEAST_LOSS = 1.0
"""Seconds that it has cost in these steps: short steps of a busy machine differ by more than the factor."""


@dataclass(frozen=True)
class SlowStretch:
    """Steps in a row in which one worker was slow."""

    worker: int
    """Its rank."""
    num_steps: int
    own: float
    """Seconds of its forward and backward passes in these steps."""
    others: float
    """Median of the other workers' seconds in forward and backward passes."""

    @property
    def ratio(self) -> float:
        """Times that its own work takes longer."""
        return self.own / self.others if self.others else float("inf")

    @property
    def is_straggler(self) -> bool:
        """Return True if the stretch is long enough, and has cost enough, to name the worker."""
        return self.num_steps >= LEAST_STEPS and self.own - self.others >= LEAST_LOSS

    def describe(self, name: str) -> str:
        """Describe the stretch in one sentence's end: `worker 1 takes 2.1 times ...`."""
        return (
            f"{name} takes {self.ratio:.1f} times as long for its forward and backward passes as the others, for "
            f"{self.num_steps:,} steps in a row"
        )


def follow_slowest(before: SlowStretch | None, work: Sequence[float], num_steps: int) -> SlowStretch | None:
    """Return the stretch after further steps, from each worker's seconds of forward and backward passes in them.

    The slowest worker is slow where it takes more than `FACTOR` times the median of the others. None where no worker
    is; another slow worker begins a stretch of its own.
    """
    if len(work) < 2 or not num_steps:
        return before
    worker = _slowest(work)
    own, others = work[worker], _median_of_others(work, worker)
    if own <= FACTOR * others:
        return None
    if before is not None and before.worker == worker:
        return SlowStretch(worker, before.num_steps + num_steps, before.own + own, before.others + others)
    return SlowStretch(worker, num_steps, own, others)


def slowest_share(work: Sequence[float]) -> float:
    """Return how many times the median of the others the slowest of several workers takes; 1 where all are alike."""
    worker = _slowest(work)
    others = _median_of_others(work, worker)
    return work[worker] / others if others else 1.0


def _slowest(work: Sequence[float]) -> int:
    return max(range(len(work)), key=lambda rank: work[rank])


def _median_of_others(work: Sequence[float], worker: int) -> float:
    return statistics.median([*work[:worker], *work[worker + 1 :]])
