"""Verification of a run that is in MLflow and was evaluated: measurements, the evaluation's digest, losses."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ditlab.analysis.opened_run import open_training_run
from ditlab.checking.verify.findings import RunVerification
from ditlab.checking.verify.verification import verify_run
from ditlab.home import Home
from ditlab.receipts.records import EVALUATED_STEP_TAG, EVALUATION_TAG
from support import special_files
from support.command import run_inside
from support.damaged.verified import rewrite_lines


@pytest.fixture(scope="module")
def evaluated(finished, tmp_path_factory) -> Path:
    """A copy of the session's finished run, evaluated."""
    home = tmp_path_factory.mktemp("evaluated") / "home"
    shutil.copytree(finished.home, home)
    for arguments in (("runs", "relocate"), ("evaluate", finished.run_id)):
        done = run_inside(*arguments, home=home)
        assert done.code == 0, done.err
    return home


@pytest.fixture
def home(evaluated) -> Iterator[Path]:
    """That home, whose journal and database a test may change."""
    journal = open_training_run("small", Home(evaluated), lambda text: None).folder.journal
    whole = {path: path.read_bytes() for path in (journal, evaluated / "mlflow.db")}
    yield evaluated
    for path, content in whole.items():
        special_files.remove(path)
        path.write_bytes(content)


def verified(home: Path) -> RunVerification:
    return verify_run(open_training_run("small", Home(home), lambda text: None), steps=0)


def said(found: RunVerification, part: str, verdict: str) -> str:
    return " ".join(each.sentence for each in found.parts if (each.part, each.verdict) == (part, verdict))


def test_an_evaluated_run(home):
    found = verified(home)
    assert found.holds, found.parts
    sentences = said(found, "evaluations", "holds")
    assert "eval/... was measured (" in sentences and "held_out/... was measured (" in sentences
    assert "is of the weights of checkpoint 4 and of the run's spec" in sentences
    assert said(found, "mlflow", "holds").startswith("4 losses in ")


def test_altered_evaluations(home):
    """A digest that was copied from elsewhere, and a measurement of other rows."""
    journal = open_training_run("small", Home(home), lambda text: None).folder.journal
    whole = journal.read_bytes()

    def other_digest(record):
        if record["kind"] == "tags" and EVALUATION_TAG in record["values"]:
            record["values"][EVALUATION_TAG] = "0" * 64
        return record

    def other_rows(record):
        if record["kind"] == "tags" and (tag := record["values"].get("ditlab.measurement.eval")):
            begin = tag.index('"held-out samples": "') + 21
            record["values"]["ditlab.measurement.eval"] = f"{tag[:begin]}{'0' * 12}{tag[begin + 12 :]}"
        return record

    def no_step(record):
        if record["kind"] == "tags" and EVALUATED_STEP_TAG in record["values"]:
            record["values"][EVALUATED_STEP_TAG] = "3"
        return record

    rewrite_lines(journal, other_digest)
    assert "evaluation 000000000000 (line" in said(verified(home), "evaluations", "off")
    journal.write_bytes(whole)
    rewrite_lines(journal, other_rows)
    assert "with other held-out samples than those" in said(verified(home), "evaluations", "off")
    journal.write_bytes(whole)
    rewrite_lines(journal, no_step)
    assert "is of checkpoint 3, which is not kept" in said(verified(home), "evaluations", "not checked")


def test_altered_losses_in_mlflow(home):
    database = home / "mlflow.db"
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("UPDATE metrics SET value = value + 1 WHERE key = 'train/loss' AND step = 2")
    assert "1 of " in said(verified(home), "mlflow", "off") and "step 2" in said(verified(home), "mlflow", "off")
    database.write_bytes(b"no database" * 1000)
    assert "cannot be read" in said(verified(home), "mlflow", "not checked")
    for kind in ("pipe", "device"):
        special_files.put(kind, database)
        assert verified(home).holds and said(verified(home), "mlflow", "not checked"), kind
