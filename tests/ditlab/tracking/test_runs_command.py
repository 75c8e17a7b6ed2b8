"""`ditlab runs` on the command line."""

from contextlib import closing
from functools import partial

import pytest

from ditlab.receipts.records import Measurement, measurement_tags
from ditlab.runs.locks import lock_run
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_connection import connect
from ditlab.tracking.records import read_record, update_record


@pytest.fixture
def runs(ditlab):
    """`ditlab runs ...`"""
    return partial(ditlab, "runs")


@pytest.fixture
def journaled(new_run):
    """`journaled(name, *metrics, **tags)`: a run with metrics of step 1, 2 and so on."""

    def make(name, *metrics, **tags):
        folder = new_run(name)
        with closing(JournalWriter(folder)) as journal:
            journal.append("tags", values={"ditlab.main_metric": "eval/velocity", **tags})
            for step, values in enumerate(metrics, start=1):
                journal.log_metrics(step, values)
        update_record(folder, status="finished", step=600)
        return folder

    return make


def test_runs_are_listed_with_their_last_loss(runs, new_run, journaled):
    assert "no runs under" in runs().out
    folder = journaled("first", *[{"train/loss": 1 / step} for step in range(1, 5001)])
    new_run("another")
    text = runs().out
    assert folder.run_id in text and "finished" in text
    assert "5,000/600" in text, "the step is that of the loss"
    assert "0.000202" in text, "the median of the last 2 %"
    (row,) = runs("--num", "1", "--json").json["runs"]
    assert row["name"] == "another" and row["train_loss"] is None


def test_the_list_is_filtered_and_holds_the_last_evaluation(runs, journaled):
    for name, value, speed in (("a1", 0.5, 10.0), ("a2", 0.25, 30.0), ("b", 0.75, 20.0)):
        result = {"eval/velocity": value, "train/samples_per_second": speed}
        folder = journaled(name, result, *[{"train/loss": 1.0}] * 1000)
    update_record(folder, status="failed")

    def names(*arguments):
        return [row["name"] for row in runs(*arguments, "--json").json["runs"]]

    assert names("--name", "a*") == ["a2", "a1"] and names("--num", "1") == ["b"]
    assert names("--status", "failed") == ["b"] and names("--status", "lost") == []
    assert "velocity 0.25" in runs().out
    (row,) = runs("--name", "b", "--json").json["runs"]
    found = (row["main_metric"], row["main_value"], row["samples_per_second"])
    assert found == ("eval/velocity", 0.75, 20.0)


def test_a_question_in_sql_has_the_protocol(runs, journaled):
    """Values rank where they are measured alike, rounding aside."""
    for name, device, batch in (("a", "cpu", 8), ("b", "cuda", 8), ("c", "cpu", 64)):
        measured = Measurement.of({"device": device, "evaluation batch": batch})
        journaled(name, {"eval/velocity": 0.5}, **measurement_tags({"eval": measured}))
    sql = "SELECT count(*), group_concat(name) FROM runs GROUP BY protocol ORDER BY 1"
    found = runs("query", sql, "--json").json["rows"]
    assert [sorted(row["group_concat(name)"].split(",")) for row in found] == [["b"], ["a", "c"]]


def test_a_run_is_renamed_here_and_in_mlflow(home, runs, new_run, store):
    folder = new_run("before")
    start = {"run_id": folder.run_id, "name": "before", "experiment": "digits", "family": "dit"}
    with closing(JournalWriter(folder)) as journal:
        journal.append("start", **start)
    renamed = runs("rename", "before", "after", "--json").json
    assert renamed == {"run_id": folder.run_id, "name": "after", "before": "before"}
    client = connect(f"sqlite:///{home.mlflow_database}", home)
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (found.info.run_name, read_record(folder).name) == ("after", "after")
    assert "**after**" in found.data.tags["mlflow.note.content"]
    for name in ("", "two words", "../x"):
        runs("rename", "after", name).refused("name=")
    runs("rename", "after", folder.run_id).refused("is the id of a run")
    with lock_run(folder):
        runs("rename", "after", "later").refused("trained by another process")


def test_what_cannot_be_read_is_said_below_the_list(runs, new_run):
    new_run("whole")
    torn, odd = (new_run(name) for name in ("torn", "odd"))
    torn.record.write_text('{"run_id": ')
    odd.journal.mkdir()
    done = runs()
    said = " ".join(done.err.split())
    assert f"1 run's run.json cannot be read: {torn.run_id} (no JSON" in said
    assert f"run {odd.run_id}: {odd.journal} cannot be read (" in said
    assert "whole" in done.out
