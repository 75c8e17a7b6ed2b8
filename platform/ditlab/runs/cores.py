"""Cores that are a run's own, and the threads of its workers, whose number later attempts keep: sums depend on it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ditlab.home import RunFolder
from ditlab.spec.resources import Resources

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""In a container, the quota of its own control group."""


class Threads(NamedTuple):
    """Threads of each worker, or of a command that computes by itself."""

    number: int
    reason: str
    """Sentence on why they are fewer than the machine's cores, or slower; empty for all cores."""

    @property
    def text(self) -> str:
        """The number in words: `2 threads`."""
        return thread_text(self.number)


def thread_text(number: int) -> str:
    """Return a number of threads in words: `1 thread`."""
    return f"{number} thread{'' if number == 1 else 's'}"


def allowed_cores(quota: Path = QUOTA) -> tuple[int, str]:
    """Return the cores that this process may use, and what limits them: its affinity mask, or the quota of its control
    group (`man 7 cgroups`, version 2); empty for neither."""
    found = [(os.cpu_count() or 1, ""), (len(os.sched_getaffinity(0)), "the affinity mask")]
    with suppress(OSError, ValueError):  # no such file, or `max`: no limit
        microseconds, period = map(int, quota.read_text().split())
        found.append((max(1, microseconds // period), "the control group"))
    return min(found, key=lambda each: each[0])


def recorded_threads(folder: RunFolder) -> int | None:
    """Return the threads of a run's first attempt, by its receipts; None where they do not tell."""
    from ditlab.receipts.reading import read_attempts  # imports NumPy

    attempts = read_attempts(folder)
    return (attempts[min(attempts)].threads or None) if attempts else None


def worker_threads(resources: Resources, recorded: int | None = None, concurrent: int = 1) -> Threads:
    """Choose the threads of each worker on this machine, of `concurrent` runs that start at once.

    These are `resources.cpus_per_worker`, those of the run's earlier attempts, or an even share of the cores that this
    process may use, at most OMP_NUM_THREADS.
    """
    (cores, limit), workers, machine = allowed_cores(), resources.max_workers * concurrent, os.cpu_count() or 1
    allowed = f"{limit} allows {cores} of {machine} cores" if limit else f"this machine has {cores} cores"
    if number := resources.cpus_per_worker or recorded:
        if number * resources.min_workers <= cores:
            return Threads(number, "")
        why = "resources.cpus_per_worker says so" if resources.cpus_per_worker else "its sums depend on their number"
        return Threads(number, f"{why}, though {allowed}: it is slower")
    share = max(1, cores // workers)
    reason = allowed if cores < machine else ""
    most = _most_threads()
    if most is not None and most < share:
        share = max(1, most)
        reason = f"OMP_NUM_THREADS={most}"
    return Threads(share, reason)


def _most_threads() -> int | None:
    """Return the number of OMP_NUM_THREADS; None where it is not set, or is none."""
    with suppress(KeyError, ValueError):
        return int(os.environ["OMP_NUM_THREADS"].split(",")[0])  # of several levels, the first: `4,2`
    return None
