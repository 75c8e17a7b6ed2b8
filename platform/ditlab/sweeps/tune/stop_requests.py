"""Requests to stop a sweep's trials, over the sweep's key-value channel."""

from contextlib import suppress
from dataclasses import dataclass

from ditlab.cluster.workers.channel import CHANNEL_ERRORS, INTERRUPTED, STOPPED, KeyValueChannel
from ditlab.runs.local import StopRequests


@dataclass(frozen=True)
class StopTrial:
    """Sends the scheduler's request to stop a trial. Tune copies its schedulers with all that they hold."""

    channel: KeyValueChannel

    def __call__(self, number: int) -> None:
        """Request that the trial with this number stops for good."""
        with suppress(*CHANNEL_ERRORS):  # sent again at the trial's next evaluation
            self.channel.put(_topic(number), STOPPED)


class TrialStopRequests(StopRequests):
    """Requests to stop one trial, or the whole sweep, read from the sweep's channel.

    The process that leads a trial has no terminal, so it gets no signals.
    """

    message = ""

    def __init__(self, channel: KeyValueChannel, number: int) -> None:
        self._channel, self._topics = channel, (_topic(number), "stop")
        self.known_reason = ""
        """Reason of the latest request; empty for none."""

    @property
    def count(self) -> int:  # type: ignore[override]
        return int(bool(self._read()))

    @property
    def reason(self) -> str:  # type: ignore[override]
        return self._read() or INTERRUPTED

    def _read(self) -> str:
        with suppress(*CHANNEL_ERRORS):
            for topic in self._topics:
                if reason := self._channel.get(topic):
                    self.known_reason = str(reason)
                    break
        return self.known_reason


def _topic(number: int) -> str:
    return f"stop/{number}"
