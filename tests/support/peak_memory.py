"""How much memory a step takes at its peak, above what was there before: measured in its own
process (Linux).
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Blocks of 64 KiB and more are given back when they are freed. By default glibc soon keeps larger
ones too, and a step that was warmed up finds what it needs in them, unmeasured."""


def peak_bytes(prepare: Callable[[], Callable[[], None]]) -> int:
    """`prepare()`, in a fresh process, gives the step. Resident bytes at the step's peak, less
    those before it.

    Whatever allocates them counts: tensors, autograd's saved ones, buffers of kernels. `prepare` is
    imported by name.
    """
    with _environment(THRESHOLD), multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (prepare,))


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Variables that processes started within inherit: glibc reads its own at a process's start
    alone.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measure(prepare: Callable[[], Callable[[], None]]) -> int:
    step = prepare()
    CLEAR.write_text("5")  # the high-water mark begins anew (Linux, proc(5))
    before = _resident("VmRSS")
    step()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
