"""A sweep's folder: its ledger, its spec, its clock."""

import json
import os
from pathlib import Path

import pytest

from ditlab.errors import UserError
from ditlab.sweeps.folder import SweepFolder, record_of
from ditlab.sweeps.prepare import create_sweep, look_back, resumed_sweep, take_up
from ditlab.sweeps.trials import PlannedTrial
from ditlab.tracking.records import create_run, find_run, list_runs
from support.sweeps import created, planned, ready, sweep_of, trial_run


@pytest.fixture
def folder(home):
    return SweepFolder(create_run(home, "a-sweep", family="dit", spec_hash="", trials=3))


VALUES = {"optimizer.lr": 1 / 3, "objective.time": {"kind": "uniform"}, "optimizer.betas": [0.9, 0.95], "a": None}


def test_the_ledger_gives_back_what_was_planned(folder, home):
    trials = [folder.plan(home, number, {**VALUES, "seed": number}) for number in range(3)]
    assert folder.trials() == trials == [PlannedTrial(n, trials[n].run_id, {**VALUES, "seed": n}) for n in range(3)]
    assert len({trial.run_id for trial in trials}) == 3
    assert SweepFolder(home.run(folder.folder.run_id)).trials() == trials


def seen(file):
    """What lies at the path of an open file, as it is now."""
    path = Path(f"/proc/self/fd/{file}").readlink()
    return {path: path.read_bytes() if path.is_file() else b""}


def test_a_planned_trial_is_on_the_disk(folder, home, monkeypatch):
    synced = {}
    monkeypatch.setattr(os, "fsync", lambda file: synced.update(seen(file)))
    trial = folder.plan(home, 0, VALUES)
    assert folder.folder.path in synced  # the ledger is new there
    assert json.loads(synced[folder.ledger]) == {"number": 0, "run_id": trial.run_id, "values": VALUES}


@pytest.mark.parametrize("kept", [1, 10, 40, -1])
def test_a_torn_last_line_is_passed_over_and_the_next_is_whole(folder, home, kept):
    first = folder.plan(home, 0, VALUES)
    whole = folder.ledger.read_bytes()
    folder.plan(home, 1, VALUES)
    folder.ledger.write_bytes(whole + folder.ledger.read_bytes()[len(whole) :][:kept])
    torn = folder.trials()
    if kept != -1:  # all but the line's end is a whole line
        assert torn == [first]
    again = folder.plan(home, len(torn), VALUES)
    assert folder.trials() == [*torn, again]


def test_an_id_that_is_taken_is_not_given(folder, home, monkeypatch):
    ids = iter(["aaaaaaaa", "aaaaaaaa", "bbbbbbbb"])
    create_run(home, "there", family="dit", spec_hash="", run_id="aaaaaaaa")
    monkeypatch.setattr("ditlab.sweeps.folder.secrets.token_hex", lambda size: next(ids))
    assert folder.plan(home, 0, {}).run_id == "bbbbbbbb"


def test_a_run_is_no_sweep(home):
    run = create_run(home, "a-run", family="dit", spec_hash="")
    with pytest.raises(UserError, match=rf"run {run.run_id} is no sweep: it has no sweep.yaml; give a sweep's id"):
        SweepFolder(run).sweep()
    assert SweepFolder(run).trials() == []


def test_the_clock(folder):
    assert folder.elapsed() == 0.0
    folder.clock.write_text('{"seconds": 12.5}')
    assert folder.elapsed() == 12.5
    for damaged in ("", "{", "[]", "{}", '{"seconds": null}'):
        folder.clock.write_text(damaged)
        assert folder.elapsed() == 0.0


def test_a_trial_has_a_record_once_it_has_begun(home):
    one = created(sweep_of())
    first, second = planned(one)[:2]
    trial_run(home, one.sweep, first, "running", {2: 1.0})
    assert record_of(home, first.run_id).status == "running"
    assert record_of(home, second.run_id) is None


def test_a_new_sweep_is_whole_before_its_first_trial(home):
    one = created(sweep_of(trials=5))
    assert [trial.number for trial in planned(one)] == list(range(5))
    assert [each.trial for each in one.checked] == planned(one) == [past.trial for past in one.past]
    assert one.folder.sweep().to_dict() == one.sweep.to_dict()
    record = find_run(home, "rates").record
    assert (record.trials, record.step, record.family) == (5, 0, "dit")
    assert (one.num_trials, one.num_remaining) == (5, 5)


def test_nothing_is_left_where_the_disk_refuses(home, monkeypatch):
    one = ready(sweep_of())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SweepFolder, "plan", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        create_sweep(one)
    assert list_runs(home) == [] and list(home.runs.iterdir()) == []


def test_what_has_ended_is_not_run_again(home):
    one = created(sweep_of(trials=5))
    trials = planned(one)
    for trial, status in zip(trials, ("finished", "stopped", "failed", "interrupted"), strict=False):
        trial_run(home, one.sweep, trial, status, {2: 0.5})
    folder, stored, _ = resumed_sweep(home, one.folder.folder.run_id, None)
    again = ready(stored)
    take_up(again, folder)
    assert [past.status for past in again.past] == ["finished", "stopped", "failed", "interrupted", "waiting"]
    assert [past.values for past in again.past] == [(0.5,)] * 4 + [()]
    assert again.num_remaining == 2
    assert planned(again) == trials
    assert "going on, 3 of 5 trials are done" in again.lines[-1]


def test_looking_back_changes_nothing(home):
    one = created(sweep_of(trials=4))
    for trial, status in zip(planned(one), ("finished", "running"), strict=False):
        trial_run(home, one.sweep, trial, status, {2: 0.5})
    files = {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}
    again = ready(sweep_of(trials=6))
    look_back(again, one.folder)
    assert [past.status for past in again.past] == ["finished", "running", "waiting", "waiting"]
    assert (again.num_trials, again.num_remaining) == (6, 5)
    assert {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()} == files


def test_of_several_sweeps_of_a_name_the_newest_goes_on_and_says_so(home):
    first, second = created(sweep_of()), created(sweep_of())
    folder, _, note = resumed_sweep(home, "rates", None)
    assert folder == second.folder and second.folder.folder.run_id in note
    folder, _, note = resumed_sweep(home, first.folder.folder.run_id, None)
    assert (folder, note) == (first.folder, "")


def test_a_sweep_may_become_longer(home):
    one = created(sweep_of(trials=3))
    folder, given, _ = resumed_sweep(home, one.folder.folder.run_id, sweep_of(trials=6, concurrent=1))
    before, longer = planned(one), ready(given)
    take_up(longer, folder)
    assert planned(longer)[:3] == before and [trial.number for trial in planned(longer)] == list(range(6))
    assert folder.sweep().trials == 6


def test_a_plan_that_was_cut_short_is_completed(home):
    one = created(sweep_of(trials=4))
    before = planned(one)
    one.folder.ledger.write_bytes(one.folder.ledger.read_bytes()[:-30])
    again = ready(one.sweep)
    take_up(again, one.folder)
    after = planned(again)
    assert after[:3] == before[:3] and after[3].values == before[3].values and len(after) == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trials": 2}, r"trials=2 \(was 4\)"),
        ({"seed": 1}, r"seed=1 \(was 0\)"),
        ({"mode": "max"}, r"mode='max' \(was 'min'\)"),
        ({"fixed": {"training.steps": 8}}, r"fixed.training.steps=8 \(was null\)"),
        ({"space": {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1.0}}},
         r"space.optimizer.lr.high=1.0 \(was 0.1\)"),
    ],
)  # fmt: skip
def test_another_sweep_is_not_gone_on_with(home, changes, told):
    one = created(sweep_of())
    before = one.folder.ledger.read_bytes()
    with pytest.raises(UserError, match=f"was started as another one: {told}. Resume it with its own file"):
        resumed_sweep(home, one.folder.folder.run_id, sweep_of(**changes))
    assert one.folder.ledger.read_bytes() == before
