"""Records that are added to a run after its training, and sent to MLflow before the command ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ditlab.tracking.tracker import CATCH_UP_TIMEOUT, RunTracker


@dataclass
class LoggedRecords:
    """Records of a block, written to the run's journal at once."""

    tracker: RunTracker
    num_unsent: int = 0
    """After the block: records of the run that have not reached MLflow, and wait for `ditlab runs sync`."""


@contextmanager
def logged_records(tracker: RunTracker) -> Iterator[LoggedRecords]:
    """Add records by the tracker during the block, then send them; a server that does not answer is waited for 30 s."""
    records = LoggedRecords(tracker)
    try:
        yield records
    finally:
        records.num_unsent = tracker.close(CATCH_UP_TIMEOUT)
