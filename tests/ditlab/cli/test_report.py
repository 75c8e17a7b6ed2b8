"""`ditlab report`, and the page that a training leaves."""

import json
import os

import pytest

import ditlab as api
from support.journaled import JournaledRun, finished_run


def test_report_writes_the_page_and_names_it(home, ditlab, tmp_path):
    folder = finished_run(home)
    said = ditlab("report", folder.run_id)
    assert said.code == 0 and said.out.strip() == str(folder.path / "report.html")
    assert said.err.splitlines()[-1].endswith(f"runs show {folder.run_id}")
    found = ditlab("report", "digits-dit", "--out", tmp_path / "new" / "page.html", "--json").json
    assert found == {
        "run_id": folder.run_id,
        "file": str(tmp_path / "new" / "page.html"),
        "bytes": found["bytes"],
    }
    assert found["bytes"] == (tmp_path / "new" / "page.html").stat().st_size > 20_000
    assert not (home / "mlflow.db").exists()


def test_mistakes_are_one_sentence(home, ditlab, tmp_path):
    folder = finished_run(home)
    pipe, circle = tmp_path / "pipe", tmp_path / "circle"
    os.mkfifo(pipe)
    circle.symlink_to(circle)
    for arguments, expected in (
        (("report", "nope"), "run 'nope' is unknown"),
        (("report", folder.run_id, "--out", tmp_path), "is a folder; name a file"),
        (("report", folder.run_id, "--out", pipe), "no plain file"),
        (("report", folder.run_id, "--out", circle), "no plain file"),
        (("report", folder.run_id, "--out", "/proc/none/x.html"), "cannot be written"),
    ):
        said = ditlab(*arguments)
        assert said.code == 2 and expected in said.err and said.err.count("\n") == 1, said.err
    assert pipe.is_fifo() and circle.is_symlink()


def test_a_sweep_has_the_page_that_it_wrote(home, ditlab):
    sweep = JournaledRun(home, name="sweep", trials=2).folder
    said = ditlab("report", "sweep")
    assert said.code == 2 and f"tune --resume {sweep.run_id}" in said.err
    (sweep.path / "report").mkdir()
    (sweep.path / "report" / "report.html").write_text("page")
    assert ditlab("report", "sweep").out.strip().endswith("report/report.html")


def test_from_python(home):
    folder = finished_run(home)
    assert api.open_run(folder.run_id).report() == folder.path / "report.html"
    with pytest.raises(api.UserError, match="is a folder"):
        api.open_run(folder.run_id).report(home)


def test_a_training_leaves_its_page_as_a_file_and_an_artifact(finished):
    folder = finished.home / "train" / finished.run_id
    page = (folder / "report.html").read_text()
    assert "finished at step 4 of 4" in page and "ended: finished" in page
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    # commands of other tests add to the run later
    trained = lines[: [line["kind"] for line in lines].index("end")]
    assert [line["artifact_path"] for line in trained if line.get("path") == "report.html"] == [
        None
    ]


@pytest.mark.slow
def test_a_training_without_a_page(ditlab, spec, home):
    said = ditlab(
        "train",
        spec,
        "--local",
        "--json",
        "--set",
        "tracking.report=false",
        "--set",
        "training.steps=2",
    )
    assert said.code == 0 and not list(home.glob("train/*/report.html"))


def test_a_page_that_cannot_be_made_costs_no_run(ditlab, spec, home, monkeypatch):
    monkeypatch.setattr("ditlab.runs.page.render_html", lambda page: 1 // 0)
    said = ditlab("train", spec, "--local", "--set", "training.steps=2")
    assert said.code == 0 and "the run's page could not be written (ZeroDivisionError" in said.err
    assert ditlab("runs", "--json").json["runs"][0]["status"] == "finished"
