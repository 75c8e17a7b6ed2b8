"""DeepSpeed's `linear` for ZeRO-3, in place of torch's while an engine of that stage is open and no longer.

It keeps no gathered weight for the backward pass. DeepSpeed itself would leave it in place for good, and every later
network of the process, of other stages and outside of engines, would compute with it, slower and to other bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from torch.nn import functional

from ditlab.engine.deepspeed_import import import_deepspeed

_lock = Lock()
_originals: list[Any] = []
"""Torch's own function, once for each open engine."""


@contextmanager
def partitioned_linear() -> Iterator[None]:
    """Compute `torch.nn.functional.linear` with partitioned weights, inside and until the last of several is left."""
    import_deepspeed()
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    with _lock:
        _originals.append(_originals[0] if _originals else functional.linear)
        functional.linear = zero3_linear_wrap
    try:
        yield
    finally:
        with _lock:
            original = _originals.pop()
            if not _originals:
                functional.linear = original
