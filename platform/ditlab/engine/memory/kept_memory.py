"""Memory of a step on a CPU, kept for the next step.

glibc gives what is freed at the end of a step back to the system, and the next step's tensors begin with a page fault
for every 4 KiB. Kept, a step of compiled digits/dit took 0.90 of its time, of compiled pixelhdm 0.74 and of mnist/unet
0.89, at the same peak of memory within 5% (tests/benchmarks/README.md). A GPU's memory is kept by torch itself.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1
_LARGE = 32 * 2**20
"""Bytes from which tensors still come from the system and go back to it: the most that glibc takes here."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep what is freed for the process' next tensors inside, and give it back at the end.

    Does nothing under C libraries other than glibc. Of contexts one inside the other, the first end is that of all.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)  # where glibc's own adjustment ends
        libc.malloc_trim(0)
