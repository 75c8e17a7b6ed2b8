"""Verification of a run that was evaluated: the digest of its last evaluation."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.receipts.records import EVALUATED_STEP_TAG, EVALUATION_TAG
from ditlab_addons.check.verify.verification import verify_run
from support.command import run_inside
from support.damaged.verified import rewrite_lines
from support.homes import settled
from support.opened import open_training_run


@pytest.fixture(scope="module")
def evaluated(finished, tmp_path_factory) -> Path:
    """A copy of the session's finished run, evaluated."""
    home = tmp_path_factory.mktemp("evaluated") / "home"
    shutil.copytree(finished.home, home)
    settled(home)
    done = run_inside("evaluate", finished.run_id, home=home)
    assert done.code == 0, done.err
    return home


@pytest.fixture
def home(evaluated) -> Iterator[Path]:
    """That home, whose journal a test may change."""
    journal = open_training_run("small", Home(evaluated), lambda text: None).folder.journal
    whole = journal.read_bytes()
    yield evaluated
    journal.write_bytes(whole)


def said(home: Path, verdict: str) -> str:
    run = open_training_run("small", Home(home), lambda text: None)
    parts = verify_run(run, steps=0).parts
    return " ".join(each.sentence for each in parts if (each.part, each.verdict) == ("evaluations", verdict))


def other_digest(tags):
    tags[EVALUATION_TAG] = "0" * 64


def other_rows(tags):
    tag = tags["ditlab.measurement.held_out"]
    begin = tag.index('"digest": "') + 11
    tags["ditlab.measurement.held_out"] = f"{tag[:begin]}{'0' * 64}{tag[begin + 64 :]}"


def no_step(tags):
    tags[EVALUATED_STEP_TAG] = "3"


def test_an_evaluated_run_and_altered_evaluations(home):
    """A digest that was copied from elsewhere, a measurement of other rows, and a checkpoint that is not there."""
    assert "is of the weights of checkpoint 4, of the run's spec and of the" in said(home, "holds")
    journal = open_training_run("small", Home(home), lambda text: None).folder.journal
    whole = journal.read_bytes()
    for change, verdict, words in (
        (other_digest, "off", "evaluation 000000000000 (line"),
        (other_rows, "off", "is not of the weights of checkpoint 4"),
        (no_step, "not checked", "is of checkpoint 3, which is not kept"),
    ):

        def altered(record, change=change):
            if record["kind"] == "tags" and EVALUATION_TAG in record["values"]:
                change(record["values"])
            return record

        journal.write_bytes(whole)
        rewrite_lines(journal, altered)
        assert words in said(home, verdict), change.__name__
