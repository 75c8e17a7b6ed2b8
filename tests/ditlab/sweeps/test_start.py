"""Start of a sweep: a new folder with its ledger, or the state of an earlier session."""

import pytest

from ditlab.errors import UserError
from ditlab.sweeps.folder import SweepFolder
from ditlab.sweeps.start import (
    create_sweep,
    find_stored_sweep,
    find_unfinished_sweep,
    read_past_trials,
    resume_sweep,
)
from ditlab.tracking.records import find_run, list_runs, update_record
from support.sweeps import LR, METRIC, planned, prepared, started, sweep_of, trial_run


def test_new_sweep_has_its_whole_ledger_before_the_first_trial(home):
    one = started(sweep_of(trials=5))
    assert [(trial.number, trial.values) for trial in planned(one)] == [
        (trial.number, trial.values) for trial in one.prepared.trials
    ]
    assert planned(one) == one.past and len(planned(one)) == 5
    assert one.folder.load_sweep().to_dict() == one.sweep.to_dict()
    record = find_run(home, "rates").record
    assert (record.trials, record.step, record.family) == (5, 0, "dit")
    assert (one.num_trials, one.num_remaining) == (5, 5)


DIGITS = {"kind": "digits"}
ASHA = {"scheduler": {"kind": "asha", "grace": 2}}
APART = {
    "held-out samples": {
        "data": {"kind": "choice", "values": [DIGITS, {**DIGITS, "hold_out": 0.01}]}
    },
    "their number": {"evaluation.limit": {"kind": "choice", "values": [16, 32]}},
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("changes", [{"search": {"kind": "optuna"}}, ASHA])
def test_nothing_chooses_among_trials_that_do_not_compare(home, name, changes):
    (path,) = APART[name]
    with pytest.raises(UserError) as refusal:
        prepared(sweep_of({**APART[name], **LR}, **changes))
    message = str(refusal.value)
    assert (
        f"space.{path}: trials of different values do not compare by {METRIC}, which they "
        "measure with"
    ) in message
    assert (
        f"{next(iter(changes))}.kind={next(iter(changes.values()))['kind']} would choose" in message
    )
    assert "make a sweep of each value, or set search.kind to random or grid" in message
    assert list_runs(home) == []


@pytest.mark.parametrize("name", APART)
def test_trials_that_do_not_compare_are_said_before_they_start(home, name):
    (warning,) = [
        line
        for line in prepared(sweep_of({**APART[name], **LR})).notes
        if line.startswith("warning:")
    ]
    assert (
        f"space.{next(iter(APART[name]))}: " in warning
        and "None will be the best of all" in warning
    )


@pytest.mark.parametrize("changes", [ASHA, {"search": {"kind": "optuna"}}])
def test_axes_that_no_measurement_depends_on_are_chosen_among(home, changes):
    axes = {
        "model.depth": {"kind": "int", "low": 1, "high": 2},
        "sampling.steps": {"kind": "choice", "values": [1, 2]},
    }
    assert not any(
        "compare" in line for line in prepared(sweep_of({**axes, **LR}, **changes)).notes
    )
    if changes is not ASHA:  # which refuses it for another reason
        apart = sweep_of(
            {**APART["held-out samples"], **LR},
            metric="perf/samples_per_second",
            mode="max",
            **changes,
        )
        assert not any("compare" in line for line in prepared(apart).notes)


def test_full_disk_leaves_no_sweep(home, monkeypatch):
    one = prepared(sweep_of())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SweepFolder, "plan_trials", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        create_sweep(one)
    assert list_runs(home) == [] and list(home.runs.iterdir()) == []


def test_ended_trials_are_not_run_again(home):
    one = started(sweep_of(trials=5))
    trials = planned(one)
    for trial, status in zip(
        trials, ("finished", "stopped", "failed", "interrupted"), strict=False
    ):
        trial_run(home, one.sweep, trial, status, {2: 0.5})
    stored = find_stored_sweep(home, one.folder.sweep_id, None)
    again = resume_sweep(prepared(stored.sweep), stored.folder)
    assert [past.status for past in again.past] == [
        "finished",
        "stopped",
        "failed",
        "interrupted",
        "waiting",
    ]
    assert [past.metrics for past in again.past] == [{METRIC: 0.5}] * 4 + [{}]
    assert again.num_remaining == 2
    assert planned(again) == trials
    assert "going on, 3 of 5 trials are done" in again.notes[-1] and len(again.notes) == 1


def test_reading_past_trials_writes_nothing(home):
    one = started(sweep_of(trials=4))
    for trial, status in zip(planned(one), ("finished", "running"), strict=False):
        trial_run(home, one.sweep, trial, status, {2: 0.5})
    files = {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}
    longer = prepared(sweep_of(trials=6))
    past = read_past_trials(longer, one.folder)
    assert [trial.status for trial in past] == ["finished", "running", "waiting", "waiting"]
    assert longer.num_trials == 6
    assert {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()} == files


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
    assert (
        found == first.folder.sweep_id and line == f"--resume auto: sweep {found} (rates), running"
    )
    found, line = find_unfinished_sweep(home, sweep_of(seed=2))
    assert found is None and line.endswith("so a new one begins")
    update_record(other.folder.folder, status="finished")
    assert find_unfinished_sweep(home, sweep_of(seed=1, trials=6))[0] is None
    of_samples = started(sweep_of())
    # another kind of the same name
    of_samples.folder.spec.write_text("name: rates\nbase: {run: small}\n")
    assert find_unfinished_sweep(home, sweep_of())[0] == first.folder.sweep_id


def test_resumed_sweep_may_have_more_trials(home):
    one = started(sweep_of(trials=3))
    stored = find_stored_sweep(home, one.folder.sweep_id, sweep_of(trials=6, concurrent=1))
    before = planned(one)
    longer = resume_sweep(prepared(stored.sweep), stored.folder)
    assert planned(longer)[:3] == before and [trial.number for trial in planned(longer)] == list(
        range(6)
    )
    assert stored.folder.load_sweep().trials == 6
    assert (stored.stored.trials, longer.num_trials, longer.num_remaining) == (3, 6, 6)


def test_ledger_that_was_cut_short_is_completed(home):
    one = started(sweep_of(trials=4))
    before = planned(one)
    one.folder.ledger.write_bytes(one.folder.ledger.read_bytes()[:-30])
    after = planned(resume_sweep(prepared(one.sweep), one.folder))
    assert after[:3] == before[:3] and after[3].values == before[3].values and len(after) == 4


CHANGES = [
    ({"trials": 2}, r"trials=2 \(was 4\)"),
    ({"seed": 1}, r"seed=1 \(was 0\)"),
    ({"mode": "max"}, r"mode='max' \(was 'min'\)"),
    ({"fixed": {"training.steps": 8}}, r"fixed.training.steps=8 \(was null\)"),
    (
        {"space": {"optimizer.lr": {"kind": "loguniform", "low": 1e-4, "high": 1.0}}},
        r"space.optimizer.lr.high=1.0 \(was 0.1\)",
    ),
]


def test_sweep_with_other_trials_is_not_resumed(home):
    one = started(sweep_of())
    before = one.folder.ledger.read_bytes()
    for changes, message in CHANGES:
        with pytest.raises(
            UserError, match=f"was started as another one: {message}. Resume it with its own file"
        ):
            find_stored_sweep(home, one.folder.sweep_id, sweep_of(**changes))
        assert one.folder.ledger.read_bytes() == before
