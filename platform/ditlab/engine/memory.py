"""Memory of a step: activations computed again or offloaded, pages that are kept for the next step.

Activation checkpointing is that of Chen et al. 2016 (arXiv:1604.06174).
"""

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

# Of malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGE = 32 * 2**20
"""Bytes from which tensors still come from the system and go back to it: the most that glibc takes
here.
"""

_num_keeping = 0  # contexts of `kept_memory` that are open


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep what is freed for the process' next tensors inside, and give it back at the end.

    Does nothing under C libraries other than glibc. Of contexts one inside the other, the last end
    is that of all.
    """
    global _num_keeping
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_M_TRIM_THRESHOLD, -1)  # never
    _num_keeping += 1
    try:
        yield
    finally:
        _num_keeping -= 1
        if not _num_keeping:
            libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)  # where glibc's own adjustment ends
            libc.malloc_trim(0)


def checkpoint_activations(modules: Iterable[nn.Module], recomputed: bool, offloaded: bool) -> None:
    """Recompute activations of modules in the backward pass (`recomputed`), and keep tensors on the
    host (`offloaded`).

    With both, the inputs of the recomputed modules are kept on the host. A module is changed once
    only.
    """
    for module in modules:
        if getattr(module.forward, "func", None) is not _pass_with_less_memory:
            module.forward = partial(_pass_with_less_memory, module.forward, recomputed, offloaded)


def _pass_with_less_memory(
    forward: Any, recomputed: bool, offloaded: bool, *inputs: Any, **named: Any
) -> Any:
    pinned = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
    with save_on_cpu(pinned) if offloaded else nullcontext():
        if recomputed:
            return checkpoint(forward, *inputs, use_reentrant=False, **named)
        return forward(*inputs, **named)
