"""SIGINT and SIGTERM as wishes: the first for an orderly end, the second for an end at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wishes:
    """How often somebody asked a run to stop, and why."""

    count = 0
    reason = "interrupted"
    """As the board has it."""
    sentence = "stopping after a final checkpoint; once more ends at once."
    """What the person hears who asked first."""


@contextmanager
def stop_signals() -> Iterator[Wishes]:
    """Counts SIGINT and SIGTERM; from the second on they raise KeyboardInterrupt. Changes nothing outside the main
    thread, where Python takes no signals."""
    wishes = Wishes()
    if threading.current_thread() is not threading.main_thread():
        yield wishes
        return

    def count(*_: object) -> None:
        wishes.count += 1
        if wishes.count > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wishes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
