"""Records of a run's journal."""

from pathlib import Path

from ditlab.tracking.journal import JournalRecord, read_lines


def read_records(path: Path) -> list[JournalRecord]:
    """Every whole record, in order."""
    return [line.record for line in read_lines(path, 0) if line.record is not None]
