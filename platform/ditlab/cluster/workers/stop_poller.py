"""Requests to stop, as a worker finds them on its channel."""

import threading
from contextlib import suppress

from ditlab.cluster.workers.channel import CHANNEL_ERRORS, KeyValueChannel

POLL_INTERVAL = 0.5  # seconds


class StopPoller:
    """Thread that polls the topic `stop`, off the training thread. Use as a context manager."""

    def __init__(self, channel: KeyValueChannel) -> None:
        self._channel, self._requested, self._ended = channel, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._poll, name="stop-poller", daemon=True)
        self.is_set = self._requested.is_set
        self.reason = ""

    def _poll(self) -> None:
        while not self._ended.wait(POLL_INTERVAL):
            with suppress(*CHANNEL_ERRORS):
                if reason := self._channel.get("stop"):
                    self.reason = reason  # a person's request may follow that of the cluster
                    self._requested.set()

    def __enter__(self) -> "StopPoller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
