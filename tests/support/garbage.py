"""Garbage collection in tests: what large imports leave is looked through once, and never again."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NUM_NEW_MODULES = 500  # torch and DeepSpeed bring more than 2,000
_frozen_at = 0


def exempt_imports() -> None:
    """Exempt all objects from collection where much was imported since the last call.

    Each engine that is closed collects garbage, and to look through all that torch and DeepSpeed import takes three
    times as long as a tiny training.
    """
    global _frozen_at
    if len(sys.modules) > _frozen_at + _NUM_NEW_MODULES:
        _frozen_at = len(sys.modules)
        gc.collect()
        gc.freeze()


@contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage inside, where much is imported, and exempt what was imported from later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        exempt_imports()
