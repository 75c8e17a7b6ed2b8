"""SIGINT and SIGTERM as requests to stop: the first ends a run after a final checkpoint, the second at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequests:
    """Number of requests to stop a run, and their reason."""

    count = 0
    reason = "interrupted"
    """Value of the topic `stop` that workers read."""
    message = "stopping after a final checkpoint; once more ends at once."
    """Warning that answers the first request; empty for none."""


@contextmanager
def stop_signals() -> Iterator[StopRequests]:
    """Count SIGINT and SIGTERM, and raise KeyboardInterrupt from the second on.

    Changes nothing outside the main thread, where Python delivers no signals.
    """
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def count(*_: object) -> None:
        requests.count += 1
        if requests.count > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
