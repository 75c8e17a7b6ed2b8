"""`ditlab runs` on the command line."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from ditlab.cli.runs import runs
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.tracking.journal.writer import JournalWriter
from ditlab.tracking.records import update_record

NewRun = Callable[..., RunFolder]


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(runs, list(arguments), catch_exceptions=False)


def test_runs_are_listed_with_their_last_loss(home: Home, new_run: NewRun) -> None:
    assert "no runs under" in invoke().stdout
    folder = new_run()
    journal = JournalWriter(folder)
    for step in range(5000):
        journal.log_metrics(step, {"train/loss": 1 / (step + 1)})
    journal.log_metrics(5000, {"train/loss": 0.125, "eval/loss": 3.0})
    journal.close()
    update_record(folder, status="finished", step=600)
    new_run("another")
    text = invoke().stdout
    assert folder.run_id in text and "600/600" in text and "0.125" in text and "finished" in text
    listed = json.loads(invoke("--num", "1", "--json").stdout)["runs"]
    assert [row["name"] for row in listed] == ["another"] and listed[0]["train_loss"] is None


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:////nowhere/none.db", "file:///tmp/mlruns", "nonsense"])
def test_an_address_that_tells_nothing_is_the_users_error(home: Home, uri: str) -> None:
    with pytest.raises(UserError, match=r"tracking\.uri="):
        invoke("--tracking", uri)
    assert not list(home.root.iterdir())


def test_a_file_that_is_no_store_is_the_users_error(home: Home) -> None:
    file = home.root / "notes.txt"
    file.write_text("no database" * 100)
    with pytest.raises(UserError, match="cannot be read as an MLflow store"):
        invoke("--tracking", f"sqlite:///{file}")


def test_sync_of_an_unknown_run_is_the_users_error(home: Home, new_run: NewRun) -> None:
    new_run()
    with pytest.raises(UserError, match="is unknown"):
        invoke("sync", "nothing-like-it")
