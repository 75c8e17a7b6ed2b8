"""Cores that are a run's own, and the threads of its workers, whose number later attempts keep:
sums depend on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import psutil

from ditlab.home import RunFolder
from ditlab.spec.resources import Resources

BUSY = 0.5
"""Cores that others keep busy from which a time that was measured beside them is no idle
machine's.
"""
LOOK = 0.5
"""Seconds over which the work of others is counted at least."""
_LONGEST = 60.0  # seconds: what others did earlier, in a notebook of hours, says little of now
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


class _Use(NamedTuple):
    """Processor seconds up to a moment."""

    moment: float
    every: float
    """All processes', on the cores of this process's affinity mask."""
    own: float
    """This process's, and those of the processes below it."""

    @classmethod
    def now(cls) -> _Use:
        mask = os.sched_getaffinity(0)
        cores = [
            each for number, each in enumerate(psutil.cpu_times(percpu=True)) if number in mask
        ]
        every = sum(each.user + each.nice + each.system for each in cores)
        own = sum(os.times()[:4])
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                own += sum(child.cpu_times()[:2])
        return cls(time.monotonic(), every, own)


_begin = _Use.now()


def busy_cores() -> float:
    """Return how many cores of this process's affinity mask others kept busy since the import of
    this module, but at most for the last minute."""
    global _begin
    if time.monotonic() - _begin.moment > _LONGEST:
        _begin = _Use.now()
    time.sleep(max(0.0, LOOK - (time.monotonic() - _begin.moment)))
    now = _Use.now()
    return max(0.0, (now.every - _begin.every) - (now.own - _begin.own)) / (
        now.moment - _begin.moment
    )


def busy_text() -> str:
    """Say how busy others kept the cores, where that changes what is timed: `others kept 1.2 of 2
    cores busy`.
    """
    busy = busy_cores()
    if busy >= BUSY:
        return f"others kept {busy:.1f} of {len(os.sched_getaffinity(0))} cores busy"
    return ""


def sleep_at_barriers(threads: int, workers: int = 1) -> None:
    """Let the threads of so many workers sleep while they wait for each other, where others leave
    them fewer cores.

    Sets OMP_WAIT_POLICY for the OpenMP runtime that this process, or one that it starts, loads with
    PyTorch from now on; a policy of the user's own stays. The bits are the same.
    """
    # Else threads spin at each barrier and take the core that the one they wait for needs: two
    # threads beside a busy process on two cores took 94 ms a step of digits/dit at batch 32, and 56
    # ms asleep. On an idle machine sleep costs 7 to 29 % of the speed. Spinning for less long
    # (GOMP_SPINCOUNT) was worst beside a busy process: 302 to 515 ms.
    if threads < 2 or {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        return
    left = round(len(os.sched_getaffinity(0)) - busy_cores())
    if threads * workers > min(allowed_cores()[0], left):
        os.environ["OMP_WAIT_POLICY"] = "passive"


def allowed_cores() -> tuple[int, str]:
    """Return the cores that this process may use, and what limits them: its affinity mask, or the
    quota of its control group (`man 7 cgroups`, version 2); empty for neither."""
    found = [(os.cpu_count() or 1, ""), (len(os.sched_getaffinity(0)), "the affinity mask")]
    with suppress(OSError, ValueError):  # no such file, or `max`: no limit
        microseconds, period = map(int, QUOTA.read_text().split())
        found.append((max(1, microseconds // period), "the control group"))
    return min(found, key=lambda each: each[0])


def recorded_threads(folder: RunFolder) -> int | None:
    """Return the threads of a run's first attempt, by its receipts; None where they do not tell."""
    from ditlab.receipts.reading import read_attempts  # imports NumPy

    attempts = read_attempts(folder)
    if attempts:
        return attempts[min(attempts)].threads or None
    return None


def worker_threads(
    resources: Resources, recorded: int | None = None, concurrent: int = 1
) -> Threads:
    """Choose the threads of each worker on this machine, of `concurrent` runs that start at once.

    These are `resources.cpus_per_worker`, those of the run's earlier attempts, or an even share of
    the cores that this process may use and that others do not keep busy now, at most
    OMP_NUM_THREADS.
    """
    cores, limit = allowed_cores()
    workers = resources.max_workers * concurrent
    allowed = _allowed_text(cores, limit)
    number = resources.cpus_per_worker or recorded
    if number:
        if number * resources.min_workers <= cores:
            return Threads(number, "")
        why = "its sums depend on their number"
        if resources.cpus_per_worker:
            why = "resources.cpus_per_worker says so"
        return Threads(number, f"{why}, though {allowed}: it is slower")
    share = max(1, cores // workers)
    reason = allowed if limit else ""
    most = _most_threads()
    if most is not None and most < share:
        share = max(1, most)
        reason = f"OMP_NUM_THREADS={most}"
    beside = beside_others(share, workers)
    if beside is None:
        return Threads(share, reason)
    return Threads(
        beside.number, f"{beside.reason}; resources.cpus_per_worker={share} takes {share}"
    )


def beside_others(share: int, workers: int = 1) -> Threads | None:
    """Return the threads of each of so many workers that have a free core; None where `share` of
    them have one.
    """
    if share < 2:
        return None
    mask = len(os.sched_getaffinity(0))
    busy = busy_cores()
    left = round(mask - busy)
    # a control group's quota is of time on any core: others take from it only where no core is free
    cores, limit = allowed_cores()
    free = max(1, min(cores, left) // workers)
    if free >= share:
        return None
    reason = f"other processes keep {busy:.1f} of {mask} cores busy"
    if cores <= left:
        reason = _allowed_text(cores, limit)
    return Threads(free, reason)


def _allowed_text(cores: int, limit: str) -> str:
    """Say how many cores this process may use, and what limits them."""
    if limit:
        return f"{limit} allows {cores} of {os.cpu_count()} cores"
    return f"this machine has {cores} cores"


def _most_threads() -> int | None:
    """Return the number of OMP_NUM_THREADS; None where it is not set, or is none."""
    with suppress(KeyError, ValueError):
        # of several levels, the first: `4,2`
        return int(os.environ["OMP_NUM_THREADS"].split(",")[0])
    return None


_chosen: ContextVar[Threads | None] = ContextVar("threads of this process", default=None)


@contextmanager
def computing_beside_others(
    say: Callable[[str], None], needed: int | None = None
) -> Iterator[None]:
    """Compute inside with one thread for each core that other processes leave, at most with
    PyTorch's number.

    `say` is told why where these are fewer. `needed`: the number that figures depend on, which
    stays. What is begun inside has the same number. With a GPU nothing changes.
    """
    import torch  # by then it is loaded; the choice of threads for a training needs none

    before = needed or torch.get_num_threads()
    if _chosen.get() or torch.cuda.is_available():
        yield
        return
    found = beside_others(before)
    if needed:
        if found is not None:
            say(
                f"computing with {thread_text(needed)}, as in training, though {found.reason}: "
                "it is slower"
            )
        yield
        return
    if found is not None:
        say(f"computing with {found.text}, as {found.reason}")
    threads = found or Threads(before, "")
    token = _chosen.set(threads)
    torch.set_num_threads(threads.number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _chosen.reset(token)
