"""`ditlab runs` on the command line."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from ditlab.cli.runs.commands import runs
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.runs.locks import lock_run
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_connection import connect
from ditlab.tracking.records import read_record, update_record

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
    assert folder.run_id in text and "5,000/600" in text and "finished" in text, (
        "the step is that of the loss"
    )
    assert "0.000202" in text and "0.125" not in text, (
        "the median of the last 2 %, and no single batch"
    )
    listed = json.loads(invoke("--num", "1", "--json").stdout)["runs"]
    assert [row["name"] for row in listed] == ["another"] and listed[0]["train_loss"] is None


def test_sync_of_an_unknown_run_is_the_users_error(home: Home, new_run: NewRun) -> None:
    new_run()
    with pytest.raises(UserError, match="is unknown"):
        invoke("sync", "nothing-like-it")


def test_the_list_is_filtered_and_holds_the_last_evaluation(home: Home, new_run: NewRun) -> None:
    for name, value, speed in (("a1", 0.5, 10.0), ("a2", 0.25, 30.0), ("b", 0.75, 20.0)):
        journal = JournalWriter(folder := new_run(name))
        journal.append("tags", values={"ditlab.main_metric": "eval/velocity"})
        journal.log_metrics(1, {"eval/velocity": value, "train/samples_per_second": speed})
        for step in range(2, 1000):
            journal.log_metrics(step, {"train/loss": 1.0, "train/lr": 0.1})
        journal.close()
        update_record(folder, status="failed" if name == "b" else "finished")

    def names(*arguments: str) -> list[str]:
        return [row["name"] for row in json.loads(invoke(*arguments, "--json").stdout)["runs"]]

    assert names("--name", "a*") == ["a2", "a1"] and names("--num", "1") == ["b"]
    assert names("--status", "failed") == ["b"] and names("--status", "lost") == []
    assert "velocity 0.25" in invoke().stdout
    (row,) = json.loads(invoke("--name", "b", "--json").stdout)["runs"]
    assert (row["main_metric"], row["main_value"], row["samples_per_second"]) == (
        "eval/velocity",
        0.75,
        20.0,
    )


def test_a_question_in_sql_has_the_protocol(home: Home, new_run: NewRun) -> None:
    """Values rank where they are measured alike, rounding aside."""
    for name, value, device, batch in (
        ("a", 0.25, "cpu", 8),
        ("b", 0.5, "cuda", 8),
        ("c", 0.75, "cpu", 64),
    ):
        journal, parts = (
            JournalWriter(folder := new_run(name)),
            {"device": device, "evaluation batch": batch},
        )
        measured = measurement_tags({"eval": Measurement.of(parts)})
        journal.append("tags", values={"ditlab.main_metric": "eval/velocity", **measured})
        journal.log_metrics(9, {"eval/velocity": value})
        journal.close()
        update_record(folder, status="finished")
    sql = "SELECT count(*), group_concat(name) FROM runs GROUP BY protocol ORDER BY 1"
    rows = json.loads(invoke("query", sql, "--json").stdout)["rows"]
    assert [sorted(row["group_concat(name)"].split(",")) for row in rows] == [["b"], ["a", "c"]]


def test_a_run_is_renamed_here_and_in_mlflow(home: Home, new_run: NewRun, store: None) -> None:
    folder = new_run("before")
    journal = JournalWriter(folder)
    journal.append("start", run_id=folder.run_id, name="before", experiment="digits", family="dit")
    journal.close()
    assert json.loads(invoke("rename", "before", "after", "--json").stdout) == {
        "run_id": folder.run_id,
        "name": "after",
        "before": "before",
    }
    client = connect(f"sqlite:///{home.mlflow_database}", home)
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (found.info.run_name, read_record(folder).name) == ("after", "after")
    assert "**after**" in found.data.tags["mlflow.note.content"]
    for name in ("", "two words", "../x"):
        with pytest.raises(UserError, match="name="):
            invoke("rename", "after", name)
    with pytest.raises(UserError, match="is the id of a run"):
        invoke("rename", "after", folder.run_id)
    with lock_run(folder), pytest.raises(UserError, match="trained by another process"):
        invoke("rename", "after", "later")


def test_what_cannot_be_read_is_said_below_the_list(home: Home, new_run: NewRun) -> None:
    new_run("whole")
    torn, odd = (new_run(name) for name in ("torn", "odd"))
    torn.record.write_text('{"run_id": ')
    odd.journal.mkdir()
    done = invoke()
    said = " ".join(done.stderr.split())
    assert f"1 run's run.json cannot be read: {torn.run_id} (no JSON" in said
    assert f"run {odd.run_id}: {odd.journal} cannot be read (" in said
    assert "whole" in done.stdout


@pytest.mark.parametrize(
    "change",
    [
        {"name": 7},
        {"name": None},
        {"status": "odd"},
        {"step": "3"},
        {"step": -1},
        {"created": "soon"},
        {"plugins": [1]},
        {"created": "2026-01-01T00:00:00"},
        {"trial": True},
        {"format": 99},
        {"format": "2"},
        {"step": 10**30},
    ],
)
def test_a_record_of_the_wrong_shape_costs_its_run_alone(
    home: Home, new_run: NewRun, change: Any
) -> None:
    whole, odd = new_run("whole"), new_run("odd")
    record = json.loads(odd.record.read_text())
    odd.record.write_text(json.dumps({**record, **change}))
    done = invoke()
    assert whole.run_id in done.stdout and odd.run_id not in done.stdout
    assert f"1 run's run.json cannot be read: {odd.run_id} (" in " ".join(done.stderr.split())
    if change == {"format": 99}:
        assert "it is of format 99, and this version of DiTLab reads 2" in " ".join(
            done.stderr.split()
        )
