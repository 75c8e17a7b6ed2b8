"""A second backend of tracking: a class of twenty lines gets a run's every record, in order,
once.
"""

import itertools
from typing import ClassVar

from ditlab import parts
from ditlab.tracking.backend import TrackingBackend
from ditlab.tracking.records import read_record
from ditlab.tracking.upload import num_unsent
from ditlab_addons.housekeeping.sync import sync_runs
from support.journals import read_records


class LinesBackend(TrackingBackend):
    """Keeps records in memory by run; `faults` are raised one by one before a record is taken."""

    runs: ClassVar[dict] = {}
    faults = iter(())

    def __init__(self, run_id):
        self.run_id = run_id

    @classmethod
    def connect(cls, to, start, run_id):
        cls.runs.setdefault(to.folder.run_id, [])
        return cls(to.folder.run_id)

    def send(self, record):
        if next(self.faults, False):
            raise ConnectionError("away")
        if record not in self.runs[self.run_id]:  # sent twice, kept once
            self.runs[self.run_id].append(record)


def test_nothing_is_lost_or_doubled_when_it_is_away(home, new_run, tracked, monkeypatch):
    own = parts.Parts(trackers={"lines": f"{__name__}:LinesBackend"})
    known = parts.all_parts
    monkeypatch.setattr(parts, "all_parts", lambda: [*known(), own])
    faults = itertools.chain([True, True, False] * 3, itertools.repeat(True))
    monkeypatch.setattr(LinesBackend, "faults", faults)
    folder = new_run(tracking_uri="lines://here")
    tracker = tracked(folder, "lines://here", params={"seed": "0"})
    for step in range(1, 41):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    left = tracker.close(3.0)
    assert left > 0 and left == num_unsent(folder, "lines://here", home) and tracker.said
    monkeypatch.setattr(LinesBackend, "faults", iter(()))
    (result,) = sync_runs([read_record(folder)], home, warn=tracker.said.append)
    assert (result.sent, result.left, result.fault) == (left, 0, "")
    assert LinesBackend.runs[folder.run_id] == read_records(folder.journal)
    assert not home.mlflow_database.exists()
