"""Gate of a sweep's trial after each evaluation: closed until the sweep's scheduler lets the trial continue."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ditlab.cluster.workers.channel import CHANNEL_ERRORS, KeyValueChannel
from ditlab.training.reporting import ProgressMarker

POLL_INTERVAL = 0.05  # seconds


class SchedulerGate:
    """Reports evaluations to the sweep, and blocks while its scheduler decides. Always open for a run of its own."""

    def __init__(
        self, channel: str, gated: bool, is_stopping: Callable[[], bool], marker: ProgressMarker, timeout: float
    ) -> None:
        """Gate of the trial with the channel of this name; empty for a run of its own.

        `gated`: whether training waits after an evaluation. `timeout` bounds a single wait, in seconds.
        """
        self._channel = KeyValueChannel(channel) if channel else None
        self._is_gated, self._is_stopping = gated, is_stopping
        self._marker, self._timeout = marker, timeout

    def report(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Report an evaluation and wait for the scheduler. Returns True if training still has to wait."""
        if self._channel is None:
            return False
        self._marker.begin(step, "waiting for the sweep's scheduler", is_untimed=True)
        self._channel.try_put("report", {"step": step, "metrics": dict(metrics)})
        deadline = time.monotonic() + self._timeout
        while waits := self._is_gated and not self._is_stopping() and self._allowed_step(self._channel) < step:
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL)
        return waits

    def _allowed_step(self, channel: KeyValueChannel) -> int:
        """Step of the last evaluation after which the trial may continue."""
        with suppress(*CHANNEL_ERRORS):
            return channel.get("go") or 0
        return 0
