"""Records of a run's journal, read and written."""

from collections.abc import Mapping
from pathlib import Path

from ditlab.tracking.journal import JournalRecord, read_lines
from ditlab.tracking.tracker import RunTracker


def read_records(path: Path) -> list[JournalRecord]:
    """Every whole record, in order."""
    return [line.record for line in read_lines(path, 0) if line.record is not None]


def log_dataset(tracker: RunTracker, fingerprint: str, counts: Mapping[str, int]) -> None:
    """Log digits as the data of a run, as its reporter does."""
    tracker.journal.append(
        "dataset",
        name="digits",
        fingerprint=fingerprint,
        source="sklearn",
        counts=dict(counts),
        context="training",
    )
