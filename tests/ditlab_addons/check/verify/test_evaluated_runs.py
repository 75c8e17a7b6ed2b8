"""Verification of a run that was evaluated: the digest of its last evaluation."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.receipts.records import EVALUATED_STEP_TAG, EVALUATION_TAG
from ditlab_addons.check.verify.verification import RunVerification, verify_run
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


def verified(home: Path) -> RunVerification:
    return verify_run(open_training_run("small", Home(home), lambda text: None), steps=0)


def said(found: RunVerification, part: str, verdict: str) -> str:
    return " ".join(each.sentence for each in found.parts if (each.part, each.verdict) == (part, verdict))


def test_an_evaluated_run(home):
    found = verified(home)
    assert found.holds, found.parts
    assert "is of the weights of checkpoint 4, of the run's spec and of the" in said(found, "evaluations", "holds")


def test_altered_evaluations(home):
    """A digest that was copied from elsewhere, and a measurement of other rows."""
    journal = open_training_run("small", Home(home), lambda text: None).folder.journal
    whole = journal.read_bytes()

    def other_digest(record):
        if record["kind"] == "tags" and EVALUATION_TAG in record["values"]:
            record["values"][EVALUATION_TAG] = "0" * 64
        return record

    def other_rows(record):
        if record["kind"] == "tags" and (tag := record["values"].get("ditlab.measurement.held_out")):
            begin = tag.index('"digest": "') + 11
            record["values"]["ditlab.measurement.held_out"] = f"{tag[:begin]}{'0' * 64}{tag[begin + 64 :]}"
        return record

    def no_step(record):
        if record["kind"] == "tags" and EVALUATED_STEP_TAG in record["values"]:
            record["values"][EVALUATED_STEP_TAG] = "3"
        return record

    rewrite_lines(journal, other_digest)
    assert "evaluation 000000000000 (line" in said(verified(home), "evaluations", "off")
    journal.write_bytes(whole)
    rewrite_lines(journal, other_rows)
    assert "is not of the weights of checkpoint 4" in said(verified(home), "evaluations", "off")
    journal.write_bytes(whole)
    rewrite_lines(journal, no_step)
    assert "is of checkpoint 3, which is not kept" in said(verified(home), "evaluations", "not checked")
