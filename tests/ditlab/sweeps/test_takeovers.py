"""Takeovers are read back, and logged once."""

import pytest

from ditlab.sweeps.folder import Takeover, read_takeovers, record_takeover
from ditlab.tracking.history import metric_history
from ditlab.tracking.records import create_run
from support.journals import read_records
from support.sweeps import log
from support.trainings.workers import tiny


def taken(step, donor, rate, warmup):
    values = {"optimizer.lr": rate, "schedule.warmup": warmup, "training.clip.kind": "norm"}
    return Takeover(step, donor, step, values, f"k{step}")


FIRST = taken(20, "aaaa0000", 2e-3, 3)
SECOND = taken(40, "bbbb0000", 1e-3, 4)


@pytest.fixture
def folder(home):
    return create_run(home, "trial", family="dit", spec_hash="")


@pytest.fixture(scope="module")
def before():
    return tiny(
        schedule__kind="warmup_cosine",
        schedule__warmup=1,
        training__clip={"kind": "norm", "max_norm": 1.0},
    )


def tags_of(folder):
    records = read_records(folder.journal)
    return [each["values"]["ditlab.exploits"] for each in records if each["kind"] == "tags"]


def test_takeovers_are_read_back_and_logged(folder, before):
    """Their numbers are metrics, and one tag holds all of them."""
    assert read_takeovers(folder) == []
    record_takeover(folder, FIRST, before)
    record_takeover(folder, SECOND, before)
    assert read_takeovers(folder) == [FIRST, SECOND]
    history = metric_history(folder)
    points = {
        name: dict(zip(each.steps, each.values, strict=True)) for name, each in history.items()
    }
    assert points == {
        "pbt/optimizer.lr": {0: 1e-3, 20: 2e-3, 40: 1e-3},
        "pbt/schedule.warmup": {0: 1.0, 20: 3.0, 40: 4.0},
    }
    first = (
        "step 20: took over run aaaa0000 at step 20, with "
        'optimizer.lr=0.002, schedule.warmup=3, training.clip.kind="norm"'
    )
    assert tags_of(folder) == [first, f"{first}; {SECOND.sentence()}"]


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


def test_long_tag_keeps_its_end(folder, before):
    for number in range(80):
        record_takeover(folder, taken(number, "aaaa0000", 2e-3, 3), before)
    tags = tags_of(folder)
    assert len(tags[-1]) == 5000 and "step 79: took over" in tags[-1]
