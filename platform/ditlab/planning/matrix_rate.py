"""Rate of a matrix product on this process's device: what a utilisation is a share of."""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

LARGEST = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the product, by type of device: large enough that a larger one is no faster."""
TIME = 0.2
"""Seconds that one product may take; a slower machine takes a smaller one."""
_SMALLEST = 256
_REPEATS = 3
"""Products that are timed after one that is not; the fastest counts, as other work of the machine only slows them."""


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations a second of a square matrix product, with the threads that this process computes with.

    2048 x 2048 on a CPU and 8192 x 8192 on CUDA, where one takes at most 0.2 s. Measured once a process for each
    device, type and number of threads; a second at most.
    """
    return _rate(device.type, device.index, dtype, torch.get_num_threads())


@cache
def _rate(kind: str, index: int | None, dtype: torch.dtype, _threads: int) -> float:
    device = torch.device(kind, index) if index is not None else torch.device(kind)
    size = _SMALLEST
    with torch.no_grad():
        seconds = _product_seconds(device, dtype, size)
        while size < LARGEST.get(kind, 2048) and seconds * 8 <= TIME:
            size *= 2
            seconds = _product_seconds(device, dtype, size)
    return 2 * size**3 / seconds


def _product_seconds(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Seconds of the fastest of a few products of two matrices (size, size)."""
    # Random values: on GPUs the power that zeros would save becomes speed that no training has.
    noise = torch.Generator(device).manual_seed(0)  # its own: the process's is the training's
    a, b = (torch.randn(size, size, device=device, dtype=dtype, generator=noise) for _ in range(2))
    out = torch.empty_like(a)
    times = [_seconds(device, lambda: torch.mm(a, b, out=out)) for _ in range(1 + _REPEATS)]
    return min(times[1:])


def _seconds(device: torch.device, work: Callable[[], Tensor]) -> float:
    """Seconds of some work, by the device's own clock on CUDA."""
    if device.type != "cuda":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    work()
    end_event.record()
    end_event.synchronize()
    return begin_event.elapsed_time(end_event) / 1000
