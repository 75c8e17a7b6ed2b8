"""A sweep's folder: its ledger, its spec, its elapsed time."""

import os
from pathlib import Path

import pytest

from ditlab.reports.sweep_records import Trial
from ditlab.storage.files import parse_json_line
from ditlab.sweeps.folder import SweepFolder
from ditlab.tracking.records import create_run
from support.damage import refused


@pytest.fixture
def folder(home):
    return SweepFolder(create_run(home, "a-sweep", family="dit", spec_hash="", trials=3))


VALUES = {
    "optimizer.lr": 1 / 3,
    "objective.time": {"kind": "uniform"},
    "optimizer.betas": [0.9, 0.95],
    "a": None,
}


def test_ledger_returns_the_planned_trials(folder, home):
    trials = [folder.plan_trial(home, number, VALUES) for number in range(3)]
    ids = [trial.run_id for trial in trials]
    expected = [Trial(number, run_id, VALUES) for number, run_id in enumerate(ids)]
    assert folder.planned_trials() == trials == expected and len(set(ids)) == 3


def test_planned_trial_is_flushed_to_the_disk(folder, home, monkeypatch):
    synced = {}

    def sync(file):
        path = Path(f"/proc/self/fd/{file}").readlink()
        synced[path] = path.read_bytes() if path.is_file() else b""

    monkeypatch.setattr(os, "fsync", sync)
    trial = folder.plan_trial(home, 0, VALUES)
    assert folder.folder.path in synced  # the ledger is new there
    assert parse_json_line(synced[folder.ledger]) == trial.to_dict()


def test_torn_last_line_is_ignored_and_the_next_line_is_whole(folder, home):
    first = folder.plan_trial(home, 0, VALUES)
    whole = folder.ledger.read_bytes()
    folder.plan_trial(home, 1, VALUES)
    second = folder.ledger.read_bytes()[len(whole) :]
    for kept in (1, 10, 40, -1):
        folder.ledger.write_bytes(whole + second[:kept])
        torn = folder.planned_trials()
        if kept != -1:  # all but the line's end is a whole line
            assert torn == [first]
        again = folder.plan_trial(home, len(torn), VALUES)
        assert folder.planned_trials() == [*torn, again]


def test_used_run_id_is_not_given_again(folder, home, monkeypatch):
    ids = iter(["aaaaaaaa", "aaaaaaaa", "bbbbbbbb"])
    create_run(home, "there", family="dit", spec_hash="", run_id="aaaaaaaa")
    monkeypatch.setattr("ditlab.sweeps.folder.secrets.token_hex", lambda size: next(ids))
    assert folder.plan_trial(home, 0, {}).run_id == "bbbbbbbb"


def test_ordinary_run_is_no_sweep(home):
    run = create_run(home, "a-run", family="dit", spec_hash="")
    with refused(rf"run {run.run_id} is no sweep: it has no sweep.yaml; give a sweep's id"):
        SweepFolder(run).load_sweep()
    assert SweepFolder(run).planned_trials() == []


def test_elapsed_time_survives_and_a_damaged_file_counts_as_zero(folder, home):
    assert folder.load_elapsed() == 0.0
    folder.save_elapsed(12.5)
    assert folder.load_elapsed() == 12.5
    assert folder.damage(home) == []
    changed = folder.clock.read_text().replace("12.5", "92.5")
    for damaged in ("", "{", "[]", "{}", changed):
        folder.clock.write_text(damaged)
        assert folder.load_elapsed() == 0.0
        assert folder.damage(home) == [
            f"{folder.clock} is damaged: the time of earlier sessions counts as none."
        ]
