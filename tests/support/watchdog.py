"""An end to what waits for ever: for readers of pipes and endless devices."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

WATCHDOG = 30.0
"""Seconds of one reading, on a busy machine."""


class Hang(BaseException):
    """A reader took longer than the watchdog allows."""


@contextmanager
def watchdog(seconds: float = WATCHDOG) -> Iterator[None]:
    """Raise `Hang` in the main thread where the block takes longer."""

    def bark(*_: object) -> None:
        raise Hang(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
