"""Attempts of a run: from each start in its journal to the end that was recorded, or to the last sign of life."""

from __future__ import annotations

import numpy as np

from ditlab.reports.run.records import RunAttempt
from ditlab.tracking.journal.content import JournalContent


def attempts_of(journal: JournalContent, ended: str, is_live: bool, now: int) -> list[RunAttempt]:
    """Attempts by time; `ended` is the status of a run that ends in this moment, `now` in milliseconds since 1970."""
    records = sorted(journal.events, key=lambda record: int(record["time"]))
    starts = [int(record["time"]) for record in records if record["kind"] == "start"]
    found = []
    for begin, following in zip(starts, [*starts[1:], None], strict=False):
        is_last = following is None
        until = following if following is not None else max(now, begin)
        if is_last and (ended or is_live):
            found.append(RunAttempt(begin, until, ended or "running"))
            continue
        own = [record for record in records if begin <= record["time"] and (is_last or record["time"] < until)]
        ends = [record for record in own if record["kind"] == "end"]
        failures = [
            record for record in own if record["kind"] == "tags" and "ditlab.failure_message" in record["values"]
        ]
        last = _last_sign(journal, own, begin, until)
        if ends:
            found.append(RunAttempt(begin, int(ends[0]["time"]), ends[0]["status"]))
        else:
            found.append(RunAttempt(begin, last, "failed" if failures else "killed"))
    return found


def _last_sign(journal: JournalContent, records: list[dict[str, object]], begin: int, until: int) -> int:
    """Time of the last record of an attempt."""
    times = [int(str(record["time"])) for record in records]
    logged = np.array(journal.times)
    inside = logged[(logged >= begin) & (logged < until)]
    return max([begin, *times, *inside[-1:].tolist()])
