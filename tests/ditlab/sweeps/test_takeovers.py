"""Takeovers are read back, and logged once."""

import pytest

from ditlab.sweeps.folder import Takeover, read_takeovers, record_takeover
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import create_run
from support.journals import read_records
from support.sweeps import log
from support.trainings.workers import tiny

FIRST = Takeover(
    20,
    "aaaa0000",
    20,
    {"optimizer.lr": 2e-3, "schedule.warmup": 3, "training.clip.kind": "norm"},
    "k1",
)
SECOND = Takeover(
    40,
    "bbbb0000",
    40,
    {"optimizer.lr": 1e-3, "schedule.warmup": 4, "training.clip.kind": "norm"},
    "k2",
)


@pytest.fixture
def folder(home):
    return create_run(home, "trial", family="dit", spec_hash="")


@pytest.fixture(scope="module")
def before():
    return tiny(
        schedule={"kind": "warmup_cosine", "warmup": 1},
        training__clip={"kind": "norm", "max_norm": 1.0},
    )


def tags_of(folder):
    return [
        record["values"]["ditlab.exploits"]
        for record in read_records(folder.journal)
        if record["kind"] == "tags"
    ]


def test_takeovers_are_read_back_in_order(folder, before):
    assert read_takeovers(folder) == []
    record_takeover(folder, FIRST, before)
    assert read_takeovers(folder) == [FIRST]
    record_takeover(folder, SECOND, before)
    assert read_takeovers(folder) == [FIRST, SECOND]


def test_numbers_become_metrics_and_words_do_not(folder, before):
    record_takeover(folder, FIRST, before)
    record_takeover(folder, SECOND, before)
    history = metric_history(folder)
    assert set(history) == {"pbt/optimizer.lr", "pbt/schedule.warmup"}
    assert (
        history["pbt/optimizer.lr"].steps.tolist(),
        history["pbt/optimizer.lr"].values.tolist(),
    ) == (
        [0, 20, 40],
        [1e-3, 2e-3, 1e-3],
    )
    assert history["pbt/schedule.warmup"].values.tolist() == [1.0, 3.0, 4.0]


def test_training_metrics_are_independent_of_takeovers(folder, before):
    log(folder, {step: {"train/loss": 1.0} for step in range(1, 21)})
    record_takeover(folder, FIRST, before)
    log(folder, {step: {"train/loss": 0.5} for step in range(15, 31)})  # some steps again
    history = metric_history(folder)
    assert history["train/loss"].steps.tolist() == list(range(1, 31))
    assert history["pbt/optimizer.lr"].steps.tolist() == [0, 20]


def test_repeated_takeover_logs_its_metrics_once(folder, before):
    """The process that led the trial was lost after it had written the journal."""
    record_takeover(folder, FIRST, before)
    (folder.path / "exploits.jsonl").unlink()
    record_takeover(folder, FIRST, before)
    assert metric_history(folder)["pbt/optimizer.lr"].steps.tolist() == [0, 20]
    assert read_takeovers(folder) == [FIRST]


def test_tag_holds_all_takeovers(folder, before):
    record_takeover(folder, FIRST, before)
    record_takeover(folder, SECOND, before)
    tags = tags_of(folder)
    assert tags[0] == (
        "step 20: took over run aaaa0000 at step 20, with "
        'optimizer.lr=0.002, schedule.warmup=3, training.clip.kind="norm"'
    )
    assert tags[1] == f"{tags[0]}; {SECOND.sentence()}" and len(tags) == 2


def test_long_tag_keeps_its_end(folder, before):
    for number in range(80):
        record_takeover(
            folder, Takeover(number, "aaaa0000", number, FIRST.values, str(number)), before
        )
    tags = tags_of(folder)
    assert len(tags[-1]) == 5000 and "step 79: took over" in tags[-1]


def test_torn_last_line_is_no_takeover(folder, before):
    record_takeover(folder, FIRST, before)
    path = folder.path / "exploits.jsonl"
    whole = path.read_bytes()
    for kept in (1, 30, 100):
        path.write_bytes(whole + whole[:kept])
        assert read_takeovers(folder) == [FIRST]
        record_takeover(folder, SECOND, before)
        assert read_takeovers(folder) == [FIRST, SECOND]
