"""`ditlab report`, and the page that a training leaves."""

import pytest

from support.journaled import JournaledRun, finished_run
from support.journals import read_records


def test_report_writes_the_page_and_names_it(home, ditlab, tmp_path):
    folder = finished_run(home)
    said = ditlab("report", folder.run_id).ok()
    assert said.out.strip() == str(folder.path / "report.html")
    assert said.err.splitlines()[-1].endswith(f"runs show {folder.run_id}")
    page = tmp_path / "new" / "page.html"
    found = ditlab("report", "digits-dit", "--out", page, "--json").json
    assert found == {"run_id": folder.run_id, "file": str(page), "bytes": page.stat().st_size}
    assert found["bytes"] > 20_000
    assert not (home / "mlflow.db").exists()


def test_mistakes_are_one_sentence(home, ditlab, tmp_path):
    folder = finished_run(home)
    ditlab("report", "nope").refused("run 'nope' is unknown")
    for place, expected in (
        (tmp_path, "is a folder; name a file"),
        ("/proc/none/x.html", "cannot be written"),
    ):
        ditlab("report", folder.run_id, "--out", place).refused(expected)


def test_a_sweep_has_the_page_that_it_wrote(home, ditlab):
    sweep = JournaledRun(home, name="sweep", trials=2).folder
    ditlab("report", "sweep").refused(f"tune --resume {sweep.run_id}")
    (sweep.path / "report").mkdir()
    (sweep.path / "report" / "report.html").write_text("page")
    assert ditlab("report", "sweep").out.strip().endswith("report/report.html")


def test_a_training_leaves_its_page_as_a_file_and_an_artifact(finished):
    folder = finished.home / "train" / finished.run_id
    page = (folder / "report.html").read_text()
    assert "finished at step 4 of 4" in page and "ended: finished" in page
    lines = read_records(folder / "journal.jsonl")
    # commands of other tests add to the run later
    trained = lines[: [line["kind"] for line in lines].index("end")]
    (logged,) = [line for line in trained if line.get("path") == "report.html"]
    assert logged["artifact_path"] is None


@pytest.mark.slow
def test_a_training_without_a_page(ditlab, spec, home):
    settings = ("--set", "tracking.report=false", "--set", "training.steps=2")
    ditlab("train", spec, "--local", *settings).ok()
    assert not list(home.glob("train/*/report.html"))


def test_a_page_that_cannot_be_made_costs_no_run(ditlab, spec, home, monkeypatch):
    monkeypatch.setattr("ditlab.runs.page.render_html", lambda page: 1 // 0)
    said = ditlab("train", spec, "--local", "--set", "training.steps=2").ok()
    assert "the run's page could not be written (ZeroDivisionError" in said.err
    assert ditlab("runs", "--json").json["runs"][0]["status"] == "finished"
