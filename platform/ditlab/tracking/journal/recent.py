"""Metrics at the end of a journal: cheap, for lists of runs."""

from __future__ import annotations

from typing import NamedTuple

from ditlab.errors import first_line
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
    fault: str = ""
    """Reason why the journal cannot be read; empty where there is none yet."""


def recent_metrics(folder: RunFolder) -> RecentMetrics:
    """Read the latest value of each metric among the last 64 KiB of a run's journal."""
    latest: dict[str, float] = {}
    try:
        tail = read_tail(folder.journal, _TAIL_BYTES)
    except FileNotFoundError:
        return RecentMetrics({}, 0)
    except OSError as error:
        return RecentMetrics({}, 0, first_line(error))
    for record in tail.records:
        if record["kind"] == "metrics":
            latest.update(all_metrics(record))
    return RecentMetrics(latest, tail.num_damaged)
