"""Pool of processes whose results come in the order of the tasks, the same for any number of
processes.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ditlab.errors import UserError

BYTES_A_PROCESS = 2**21
"""Bytes of input that make one more process worth its start (about half a second)."""
WAITING_TASKS = 3
"""Tasks of each process that wait or are done and not yet taken: the bound on memory."""
# seconds in which a signal for every process, which has ended the pool's, reaches this one
_SIGNAL_DELAY = 0.5
_work: Callable[[Any], Any]
"""Work of this process, where it is one of a pool."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def fitting_processes(num_bytes: int) -> int:
    """Return the number of processes for an input: as many as there are cores, fewer for a small
    input.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, num_bytes // BYTES_A_PROCESS))


def in_processes(
    work: Callable[[Task], Result], tasks: Iterable[Task], processes: int, verb: str
) -> Iterator[Result]:
    """Yield `work(task)` of each task, in the order of the tasks, which are taken only as results
    are consumed.

    `work` travels once to each process, with all that it holds. Raises whatever `work` raises, and
    UserError where a process that `verb` (`tokenises`) is killed.
    """
    # a fork of a process with threads, as torch has, may hang
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(work,)) as pool:
        try:
            yield from results_in_order(pool, _do, tasks, processes * WAITING_TASKS)
        except KeyboardInterrupt:
            # the pool's end would wait for their tasks
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        except BrokenProcessPool as error:
            time.sleep(_SIGNAL_DELAY)
            raise UserError(
                f"a process that {verb} was killed (--processes={processes}), as happens where "
                "memory runs out; lower --processes."
            ) from error


def results_in_order(
    pool: Executor, work: Callable[[Task], Result], tasks: Iterable[Task], ahead: int
) -> Iterator[Result]:
    """Yield `work(task)` of each task in their order, with `ahead` tasks begun before they are
    consumed at most.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) == ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _do(task: Any) -> Any:
    return _work(task)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    follow_parent()


def follow_parent() -> None:
    """Leave Ctrl-C to the process that began this one, and end at once where that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """End this process at once where the one that began it is gone."""
    parent = multiprocessing.parent_process()

    def wait() -> None:  # which was killed, perhaps: this process would wait for ever
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
