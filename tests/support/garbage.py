"""Garbage collection in tests: what large imports leave is looked through once, and never again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 20_000
"""Objects that each collection may look through; torch and DeepSpeed bring more than a million."""


def exempt_imports() -> None:
    """Exempt all objects from collection where many were made since the last call and are still
    there.

    Each engine that is closed collects garbage, and to look through all that torch and DeepSpeed
    import takes three times as long as a tiny training.
    """
    if len(gc.get_objects()) > _MOST:
        gc.collect()
        gc.freeze()


@contextmanager
def paused() -> Iterator[None]:
    """Collect no garbage inside, where much is imported, and exempt what was imported from later
    collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        exempt_imports()
