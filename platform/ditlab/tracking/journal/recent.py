"""Metrics at the end of a journal: cheap, for lists of runs."""

from __future__ import annotations

from typing import NamedTuple

from ditlab.home import RunFolder
from ditlab.tracking.journal.format import all_metrics
from ditlab.tracking.journal.reader import read_tail

_TAIL_BYTES = 65536


class RecentMetrics(NamedTuple):
    """Metrics among the last 64 KiB of a journal."""

    latest: dict[str, float]
    """Latest value by metric."""
    num_damaged: int
    """Damaged lines that were passed over."""


def recent_metrics(folder: RunFolder) -> RecentMetrics:
    """Read the latest value of each metric among the last 64 KiB of a run's journal."""
    latest: dict[str, float] = {}
    tail = read_tail(folder.journal, _TAIL_BYTES)
    for record in tail.records:
        if record["kind"] == "metrics":
            latest.update(all_metrics(record))
    return RecentMetrics(latest, tail.num_damaged)
