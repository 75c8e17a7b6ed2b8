"""Damaged ledgers: what is damaged costs itself alone, is said, and no trial that ran is run again."""

import os

import pytest

from ditlab.errors import UserError
from ditlab.storage.files import encode_json_line, read_json_lines
from ditlab.sweeps.folder import read_ledger
from ditlab.sweeps.start import read_past_trials, resume_sweep
from ditlab.sweeps.trials import Takeover, read_takeovers
from ditlab.tracking.records import update_record
from support.sweeps import planned, prepared, started, sweep_of, trial_run

OPTUNA = {"search": {"kind": "optuna"}}


def ran(home, one, number):
    trial = planned(one)[number]
    folder = trial_run(home, one.sweep, trial, "finished", {2: 0.5}, parent=one.folder.sweep_id)
    update_record(folder, trial=number)
    return folder


def lines_of(one):
    return one.folder.ledger.read_bytes().splitlines(keepends=True)


def damage(one, number, old=b'"number":', new=b'"nunber":'):
    lines = lines_of(one)
    assert old in lines[number]
    lines[number] = lines[number].replace(old, new)
    one.folder.ledger.write_bytes(b"".join(lines))


def test_trial_whose_line_is_damaged_is_found_by_its_run(home):
    one = started(sweep_of())
    before = planned(one)
    ran(home, one, 2)
    damage(one, 2)
    found = read_past_trials(one.prepared, one.folder)
    ledger = one.folder.ledger
    assert found.notes == [f"{ledger}: 1 damaged line passed over; trial 2 is known by its run."]
    assert [past.trial for past in found.trials] == before and found.trials[2].status == "finished"

    again = resume_sweep(prepared(one.sweep), one.folder)
    assert again.notes[0] == found.notes[0] and again.num_remaining == 3
    assert planned(again) == before, "the ledger is whole again"
    assert resume_sweep(prepared(one.sweep), one.folder).notes == [again.notes[-1]], "said once"
    assert ledger.with_name("trials.jsonl.damaged").exists()


def test_trial_that_had_not_started_is_planned_anew(home):
    one = started(sweep_of())
    before = planned(one)
    damage(one, 3)
    again = resume_sweep(prepared(one.sweep), one.folder)
    after = planned(again)
    assert after[:3] == before[:3] and after[3].values == before[3].values
    assert "1 damaged line passed over." in again.notes[0]


def rewritten(one, change):
    """Write the ledger again after `change` of its records."""
    records = read_json_lines(one.folder.ledger).records
    change(records)
    one.folder.ledger.write_bytes(b"".join(map(encode_json_line, records)))


CHANGES = {
    "a trial twice": lambda records: records.append(records[0]),
    "a number twice": lambda records: records.append({**records[0], "run_id": "abcdabcd"}),
    "a run twice": lambda records: records.append({**records[0], "number": 4}),
    "no values": lambda records: records.append({**records[0], "number": 4, "run_id": "abcdabcd", "values": None}),
    "text as number": lambda records: records.append({**records[0], "number": "4", "run_id": "abcdabcd"}),
    "true as number": lambda records: records.append({**records[0], "number": True, "run_id": "abcdabcd"}),
    "a path as run": lambda records: records.append({**records[0], "number": 4, "run_id": "../../etc"}),
    "null as run": lambda records: records.append({**records[0], "number": 4, "run_id": None}),
    "one field more": lambda records: records.append({**records[0], "number": 4, "run_id": "abcdabcd", "x": 1}),
}
OTHER_VALUES = {
    "a null": lambda records: records[0]["values"].update({"optimizer.lr": None}),
    "a text": lambda records: records[0]["values"].update({"optimizer.lr": "0.01"}),
    "another value": lambda records: records[0]["values"].update({"optimizer.lr": 0.0123}),
    "another axis": lambda records: records[0]["values"].update({"optimizer.eps": 1e-8}),
    "beyond the end": lambda records: records[3].update(number=77),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_line_that_is_no_trial_of_the_sweep_is_passed_over_and_said(home, change):
    one = started(sweep_of())
    rewritten(one, change)
    found = read_past_trials(one.prepared, one.folder)
    assert found.notes == [f"{one.folder.ledger}: 1 damaged line passed over."]
    again = resume_sweep(prepared(one.sweep), one.folder)
    assert [trial.number for trial in planned(again)] == [0, 1, 2, 3]
    assert [trial.values for trial in planned(again)] == [trial.values for trial in one.prepared.trials]


@pytest.mark.parametrize("change", OTHER_VALUES.values(), ids=OTHER_VALUES.keys())
def test_trial_that_the_sweep_does_not_make_is_refused(home, change):
    one = started(sweep_of())
    rewritten(one, change)
    with pytest.raises(UserError, match=r"does not make \(1 trials differ\); restore"):
        read_past_trials(one.prepared, one.folder)


def test_sweep_that_makes_other_trials_is_refused(home):
    one = started(sweep_of())
    with pytest.raises(UserError, match=r"trial 0 has optimizer.lr=.* does not make \(4 trials differ\); restore"):
        read_past_trials(prepared(sweep_of(seed=1)), one.folder)


def test_trials_of_a_search_are_checked_by_their_axes_and_known_by_their_runs(home):
    sweep = sweep_of(trials=4, **OPTUNA)
    one = started(sweep)
    trials = [one.folder.plan_trial(home, number, {"optimizer.lr": 0.01}) for number in range(3)]
    ran(home, one, 1)
    damage(one, 1)
    found = read_past_trials(one.prepared, one.folder)
    assert [past.trial for past in found.trials] == trials and "trial 1 is known by its run" in found.notes[0]
    bad = {"number": 3, "run_id": "abcdabcd", "values": {"optimizer.lr": "0.01"}}
    one.folder.ledger.write_bytes(encode_json_line(bad))
    with pytest.raises(UserError, match="does not make"):
        read_past_trials(one.prepared, one.folder)
    one.folder.ledger.write_bytes(b"")
    assert [past.trial for past in read_past_trials(one.prepared, one.folder).trials] == [trials[1]]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_special_file_as_ledger_is_said_and_replaced(home, make):
    one = started(sweep_of())
    before = planned(one)
    ran(home, one, 0)
    one.folder.ledger.unlink()
    make(one.folder.ledger)
    again = resume_sweep(prepared(one.sweep), one.folder)
    assert "cannot be read (" in again.notes[0] and "no plain file); trial 0 is known by its run" in again.notes[0]
    assert planned(again)[0] == before[0] and len(planned(again)) == 4


def test_lost_ledger_is_made_anew_from_the_runs(home):
    one = started(sweep_of())
    before = planned(one)
    ran(home, one, 1)
    one.folder.ledger.unlink()
    again = resume_sweep(prepared(one.sweep), one.folder)
    assert planned(again)[1] == before[1] and again.notes[0].endswith(
        "trials.jsonl: lines are missing; trial 1 is known by its run."
    )


def test_damaged_elapsed_time_and_takeovers_are_said(home):
    one = started(sweep_of())
    run = ran(home, one, 0)
    taken = Takeover(2, "abcdabcd", 2, {"optimizer.lr": 0.1}, "key")
    whole = encode_json_line(vars(taken))
    (run.path / "exploits.jsonl").write_bytes(whole + whole.replace(b"0.1", b"0.7") + b'{"step": 1}\n')
    one.folder.clock.write_text('{"seconds": -1}')
    notes = read_past_trials(one.prepared, one.folder).notes
    assert read_takeovers(run) == [taken]
    assert "elapsed.json is damaged: the time of earlier sessions counts as none." in notes[0]
    assert "2 damaged lines passed over; those trials have earlier values." in notes[1]


def test_bits_of_a_ledger_cost_one_line_each(home):
    one = started(sweep_of(trials=3))
    trials, content = planned(one), one.folder.ledger.read_bytes()
    silent = 0
    for position in range(0, 8 * len(content), 31):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        one.folder.ledger.write_bytes(damaged)
        found = read_ledger(one.folder.ledger)
        assert all(trial in trials for trial in found.trials) and len(found.trials) >= 2, position
        silent += len(found.trials) < 3 and not found.num_damaged
    assert silent == 0
