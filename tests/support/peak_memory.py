"""How much memory a step takes at its peak, above what was there before: measured in its own process (Linux)."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(prepare: Callable[[], Callable[[], None]]) -> int:
    """`prepare()`, in a fresh process, gives the step. Resident bytes at the step's peak, less those before it.

    Whatever allocates them counts: tensors, autograd's saved ones, buffers of kernels. `prepare` is imported by name.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (prepare,))


def _measure(prepare: Callable[[], Callable[[], None]]) -> int:
    step = prepare()
    CLEAR.write_text("5")  # the high-water mark begins anew (Linux, proc(5))
    before = _resident("VmRSS")
    step()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
