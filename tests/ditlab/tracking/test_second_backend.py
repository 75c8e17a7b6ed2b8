"""A second backend of tracking: a class of twenty lines gets a run's every record, in order,
once.
"""

import itertools
from typing import ClassVar

import pytest

from ditlab import parts
from ditlab.home import Home
from ditlab.tracking.backend import TrackingBackend
from ditlab.tracking.records import create_run, read_record
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import num_unsent
from ditlab_addons.housekeeping.sync import sync_runs
from support.command import run_inside
from support.journals import read_records

TINY = """\
name: tiny
model: {family: dit, image_size: 8, patch_size: 4, width: 16, depth: 1, num_heads: 2}
batch: {size: 16}
training: {steps: 5}
evaluation: {every: 5, samples: 2, limit: 16}
sampling: {steps: 2}
tracking: {system_metrics: false, uri: "lines://here"}
"""


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


@pytest.fixture
def lines(monkeypatch):
    own = parts.Parts(trackers={"lines": f"{__name__}:LinesBackend"})
    known = parts.all_parts
    monkeypatch.setattr(parts, "all_parts", lambda: [*known(), own])
    monkeypatch.setattr(LinesBackend, "runs", {})
    monkeypatch.setattr(LinesBackend, "faults", iter(()))
    return LinesBackend


@pytest.fixture
def run_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path))
    return Home(tmp_path)


def test_a_training_s_every_point_arrives(lines, tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY)
    said = run_inside(
        "train", tmp_path / "tiny.yaml", "--local", "--no-figures", "--json", home=tmp_path / "home"
    )
    assert said.code == 0, said.err
    run_id = said.json["run_id"]
    journal = list(read_records(Home(tmp_path / "home").run(run_id).journal))
    notes = [record for record in journal if record["kind"] == "note"]
    sent = lines.runs[run_id]
    assert [record for record in sent if record["kind"] != "note"] == [
        each for each in journal if each not in notes
    ]
    assert notes[-1] in sent
    steps = [record["step"] for record in journal if "train/loss" in record.get("values", {})]
    assert steps and steps == sorted(set(steps)) and journal[-1]["kind"] == "end"
    assert not (tmp_path / "home" / "mlflow.db").exists()


def test_nothing_is_lost_or_doubled_when_it_is_away(lines, run_home):
    folder = create_run(run_home, "away", family="dit", spec_hash="", tracking_uri="lines://here")
    lines.faults = itertools.chain([True, True, False] * 3, itertools.repeat(True))
    warnings = []
    tracker = RunTracker(folder, "lines://here", run_home, warn=warnings.append)
    tracker.start("away", "lab", "dit", {"seed": "0"})
    for step in range(1, 41):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    left = tracker.close(3.0)
    assert left > 0 and left == num_unsent(folder, "lines://here", run_home) and warnings
    lines.faults = iter(())
    (result,) = sync_runs([read_record(folder)], run_home, warn=warnings.append)
    assert (result.sent, result.left, result.fault) == (left, 0, "")
    assert lines.runs[folder.run_id] == list(read_records(folder.journal))
