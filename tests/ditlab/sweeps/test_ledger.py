"""Damaged ledgers: a damaged line costs itself alone, and is said."""

from ditlab.storage.files import encode_json_line
from ditlab.sweeps.folder import Takeover, read_takeovers
from ditlab.sweeps.start import read_past_trials, resume_sweep
from support.damage import refused
from support.sweeps import planned, prepared, started, sweep_of, trial_run


def test_trial_whose_line_is_damaged_is_planned_again(home):
    one = started(sweep_of())
    before = planned(one)
    lines = one.folder.ledger.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"number":', b'"nunber":')
    one.folder.ledger.write_bytes(b"".join(lines))
    again = resume_sweep(prepared(one.sweep), one.folder)
    after = planned(again)
    said = (
        f"{one.folder.ledger}: damaged lines are skipped (1); a trial without a line is run again."
    )
    assert again.notes[0] == said and one.folder.damage(home) == [said]
    (planned_again, lost) = after.pop(2), before.pop(2)
    assert after == before
    assert planned_again.values == lost.values and planned_again.run_id != lost.run_id


def test_sweep_that_makes_other_trials_is_refused(home):
    one = started(sweep_of())
    with refused(r"trial 0 has optimizer.lr=.* does not make \(4 trials differ\); restore"):
        read_past_trials(prepared(sweep_of(seed=1)), one.folder)


def test_ledger_that_is_no_file_is_refused(home):
    one = started(sweep_of())
    one.folder.ledger.unlink()
    one.folder.ledger.mkdir()
    with refused("cannot be written"):
        resume_sweep(prepared(one.sweep), one.folder)


def test_damaged_takeovers_are_said(home):
    one = started(sweep_of())
    run = trial_run(
        home, one.sweep, planned(one)[0], "finished", {2: 0.5}, parent=one.folder.sweep_id
    )
    taken = Takeover(2, "abcdabcd", 2, {"optimizer.lr": 0.1}, "key")
    whole = encode_json_line(vars(taken))
    (run.path / "exploits.jsonl").write_bytes(
        whole + whole.replace(b"0.1", b"0.7") + b'{"step": 1}\n'
    )
    (note,) = one.folder.damage(home)
    assert read_takeovers(run) == [taken]
    assert "damaged lines are skipped (2); those trials have earlier values." in note
