"""What a run took over is read back, and told in its journal once."""

import pytest

from ditlab.sweeps.takeovers import Exploit, exploits, note_exploit
from ditlab.tracking.journal.reader import read_records
from ditlab.tracking.journal.history import metric_history
from ditlab.tracking.records import create_run
from support.sweeps import log
from support.workers import tiny

FIRST = Exploit(20, "aaaa0000", 20, {"optimizer.lr": 2e-3, "schedule.warmup": 3, "training.clip.kind": "norm"}, "k1")
SECOND = Exploit(40, "bbbb0000", 40, {"optimizer.lr": 1e-3, "schedule.warmup": 4, "training.clip.kind": "norm"}, "k2")


@pytest.fixture
def folder(home):
    return create_run(home, "trial", family="dit", spec_hash="")


@pytest.fixture
def before():
    return tiny(schedule={"kind": "warmup_cosine", "warmup": 1}, training__clip={"kind": "norm", "max_norm": 1.0})


def test_round_trip(folder, before):
    assert exploits(folder) == []
    note_exploit(folder, FIRST, before)
    assert exploits(folder) == [FIRST]
    note_exploit(folder, SECOND, before)
    assert exploits(folder) == [FIRST, SECOND]


def test_numbers_are_curves_and_words_are_not(folder, before):
    note_exploit(folder, FIRST, before)
    note_exploit(folder, SECOND, before)
    history = metric_history(folder)
    assert set(history) == {"pbt/optimizer.lr", "pbt/schedule.warmup"}
    assert (history["pbt/optimizer.lr"].steps, history["pbt/optimizer.lr"].values) == ([0, 20, 40], [1e-3, 2e-3, 1e-3])
    assert history["pbt/schedule.warmup"].values == [1.0, 3.0, 4.0]


def test_curves_of_training_stand_beside_them(folder, before):
    log(folder, {step: {"train/loss": 1.0} for step in range(1, 21)})
    note_exploit(folder, FIRST, before)
    log(folder, {step: {"train/loss": 0.5} for step in range(15, 31)})  # some steps again
    history = metric_history(folder)
    assert history["train/loss"].steps == list(range(1, 31))
    assert history["pbt/optimizer.lr"].steps == [0, 20]


def test_a_point_is_told_once(folder, before):
    """The process that led the trial was lost after it had told the journal, before it could tell anyone else."""
    note_exploit(folder, FIRST, before)
    (folder.path / "exploits.jsonl").unlink()
    note_exploit(folder, FIRST, before)
    assert metric_history(folder)["pbt/optimizer.lr"].steps == [0, 20]
    assert exploits(folder) == [FIRST]


def test_the_tag_has_all_of_them(folder, before):
    note_exploit(folder, FIRST, before)
    note_exploit(folder, SECOND, before)
    tags = [record["values"]["ditlab.exploits"] for record in read_records(folder.journal) if record["kind"] == "tags"]
    assert tags[0] == (
        "step 20: took over run aaaa0000 at step 20, with "
        'optimizer.lr=0.002, schedule.warmup=3, training.clip.kind="norm"'
    )
    assert tags[1] == f"{tags[0]}; {SECOND.sentence()}" and len(tags) == 2


def test_a_long_tag_is_cut_at_its_beginning(folder, before):
    for number in range(80):
        note_exploit(folder, Exploit(number, "aaaa0000", number, FIRST.values, str(number)), before)
    tags = [record["values"]["ditlab.exploits"] for record in read_records(folder.journal) if record["kind"] == "tags"]
    assert len(tags[-1]) == 5000 and "step 79: took over" in tags[-1]


@pytest.mark.parametrize("kept", [1, 30, 100])
def test_a_torn_last_line_is_no_takeover(folder, before, kept):
    note_exploit(folder, FIRST, before)
    path = folder.path / "exploits.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:kept])
    assert exploits(folder) == [FIRST]
    note_exploit(folder, SECOND, before)
    assert exploits(folder) == [FIRST, SECOND]
