"""Start of a sweep: a new folder with its ledger, or the state of an earlier session."""

import pytest

from ditlab.sweeps.folder import SweepFolder
from ditlab.sweeps.start import (
    create_sweep,
    find_stored_sweep,
    find_unfinished_sweep,
    read_past_trials,
    resume_sweep,
)
from ditlab.tracking.records import find_run, list_runs, update_record
from support.damage import refused
from support.sweeps import BASE, LR, METRIC, planned, prepared, started, sweep_of, trial_runs


def test_new_sweep_has_its_whole_ledger_before_the_first_trial(home):
    one = started(sweep_of(trials=5))
    expected = [(trial.number, trial.values) for trial in one.prepared.trials]
    assert [(trial.number, trial.values) for trial in planned(one)] == expected
    assert planned(one) == one.past and one.folder.load_sweep() == one.sweep
    record = find_run(home, "rates").record
    assert (record.trials, record.step, record.family) == (5, 0, "dit")
    assert (one.num_trials, one.num_remaining) == (5, 5)


DIGITS = {"kind": "digits"}
ASHA = {"scheduler": {"kind": "asha", "grace": 2}}
OPTUNA = {"search": {"kind": "optuna"}}
APART = {
    "data": {"kind": "choice", "values": [DIGITS, {**DIGITS, "hold_out": 0.01}]},
    "evaluation.limit": {"kind": "choice", "values": [16, 32]},
}
"""Axes whose trials have other held-out samples, or another number of them."""


@pytest.mark.parametrize(("path", "changes"), [("data", OPTUNA), ("evaluation.limit", ASHA)])
def test_nothing_chooses_among_trials_that_do_not_compare(home, path, changes):
    ((section, chooser),) = changes.items()
    message = (
        rf"space\.{path}: trials of different values do not compare by {METRIC}, which they "
        rf"measure with other .*{section}\.kind={chooser['kind']} would choose among them by it; "
        "make a sweep of each value, or set search.kind to random or grid"
    )
    with refused(message):
        prepared(sweep_of({path: APART[path], **LR}, **changes))
    assert list_runs(home) == []
    notes = prepared(sweep_of({path: APART[path], **LR})).notes
    (warning,) = [line for line in notes if line.startswith("warning:")]
    assert f"space.{path}: " in warning and "None will be the best of all" in warning


@pytest.mark.parametrize("changes", [ASHA, OPTUNA])
def test_axes_that_no_measurement_depends_on_are_chosen_among(home, changes):
    axes = {
        "model.depth": {"kind": "int", "low": 1, "high": 2},
        "sampling.steps": {"kind": "choice", "values": [1, 2]},
    }
    # a part of a mixture has its own held-out samples, whatever the weights are
    data = {"kind": "mixture", "parts": {"many": DIGITS, "few": {**DIGITS, "hold_out": 0.5}}}
    base = {**BASE, "data": {**data, "weights": {"many": 1.0, "few": 1.0}}}
    axes["data.weights.few"] = {"kind": "choice", "values": [0.1, 10.0]}
    mixed = sweep_of({**axes, **LR}, base=base, **changes)
    assert "compare" not in str(prepared(mixed).notes)
    if changes is not ASHA:  # which refuses it for another reason
        pace = {"metric": "perf/samples_per_second", "mode": "max"}
        apart = sweep_of({"data": APART["data"], **LR}, **pace, **changes)
        assert "compare" not in str(prepared(apart).notes)


def test_full_disk_leaves_no_sweep(home, monkeypatch):
    one = prepared(sweep_of())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SweepFolder, "plan_trials", full)
    with refused(r"cannot be written \(No space left on device\)"):
        create_sweep(one)
    assert list_runs(home) == [] and list(home.runs.iterdir()) == []


def test_ended_trials_are_not_run_again(home):
    one = started(sweep_of(trials=5))
    trials = planned(one)
    statuses = ["finished", "stopped", "failed", "interrupted"]
    trial_runs(home, one, [(status, {2: 0.5}) for status in statuses])
    stored = find_stored_sweep(home, one.folder.sweep_id, None)
    again = resume_sweep(prepared(stored.sweep), stored.folder)
    assert [past.status for past in again.past] == [*statuses, "waiting"]
    assert [past.metrics for past in again.past] == [{METRIC: 0.5}] * 4 + [{}]
    assert again.num_remaining == 2
    assert planned(again) == trials
    assert "going on, 3 of 5 trials are done" in again.notes[-1] and len(again.notes) == 1


def test_reading_past_trials_writes_nothing(home):
    one = started(sweep_of())
    trial_runs(home, one, [("finished", {2: 0.5}), ("running", {2: 0.5})])

    def files():
        return {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}

    before = files()
    past = read_past_trials(prepared(sweep_of(trials=6)), one.folder)
    assert [trial.status for trial in past] == ["finished", "running", "waiting", "waiting"]
    assert files() == before


def test_newest_of_several_sweeps_of_a_name_is_found_with_a_note(home):
    first, second = started(sweep_of()), started(sweep_of())
    found = find_stored_sweep(home, "rates", None)
    assert found.folder == second.folder and second.folder.sweep_id in found.note
    found = find_stored_sweep(home, first.folder.sweep_id, None)
    assert (found.folder, found.note) == (first.folder, "")


def test_unfinished_sweep_is_found_by_its_content(home):
    assert find_unfinished_sweep(home, sweep_of())[0] is None
    first, second = started(sweep_of()), started(sweep_of())
    other = started(sweep_of(seed=1))
    assert find_unfinished_sweep(home, sweep_of())[0] == second.folder.sweep_id
    update_record(second.folder.folder, status="finished")
    found, line = find_unfinished_sweep(home, sweep_of())
    assert found == first.folder.sweep_id
    assert line == f"--resume auto: sweep {found} (rates), running"
    found, line = find_unfinished_sweep(home, sweep_of(seed=2))
    assert found is None and line.endswith("so a new one begins")
    update_record(other.folder.folder, status="finished")
    assert find_unfinished_sweep(home, sweep_of(seed=1, trials=6))[0] is None
    of_samples = started(sweep_of())
    # another kind of the same name
    of_samples.folder.spec.write_text("name: rates\nbase: {run: small}\n")
    assert find_unfinished_sweep(home, sweep_of())[0] == first.folder.sweep_id


def test_sweep_with_other_trials_is_not_resumed(home):
    one = started(sweep_of())
    before = one.folder.ledger.read_bytes()
    for changes, message in (
        ({"seed": 1}, r"seed=1 \(was 0\)"),
        ({"fixed": {"training.steps": 8}}, r"fixed.training.steps=8 \(was null\)"),
    ):
        with refused(f"was started as another one: {message}. Resume it with its own file"):
            find_stored_sweep(home, one.folder.sweep_id, sweep_of(**changes))
        assert one.folder.ledger.read_bytes() == before
