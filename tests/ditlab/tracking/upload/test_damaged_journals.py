"""`ditlab runs sync` with a damaged journal: what is whole arrives, the rest is counted, and
nothing blocks.
"""

import pytest
from mlflow import MlflowClient

from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.records import list_runs
from ditlab_addons.housekeeping.sync import sync_runs

pytestmark = pytest.mark.usefixtures("store")


@pytest.fixture
def folder(new_run):
    """A run whose journal nobody has sent."""
    folder = new_run()
    journal = JournalWriter(folder)
    journal.append(
        "start", run_id=folder.run_id, name="digits-dit", experiment="digits", family="dit"
    )
    for step in range(1, 11):
        journal.log_metrics(step, {"train/loss": step / 8})
    journal.append("end", status="finished")
    journal.close()
    return folder


def synced(home):
    """The one run in MLflow, and the warnings."""
    warnings = []
    (result,) = sync_runs(list_runs(home), home, warn=warnings.append)
    assert (result.left, result.fault) == (0, "")
    client = MlflowClient(f"sqlite:///{home.mlflow_database}")
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return run, warnings


def test_a_line_of_the_wrong_shape_blocks_nothing(home, folder):
    lines = folder.journal.read_bytes().splitlines(keepends=True)
    lines[3] = b'{"kind":"metrics","time":1,"step":3,"valeus":{"train/loss":1.0}}\n'
    folder.journal.write_bytes(b"".join(lines))
    run, warnings = synced(home)
    assert run.data.metrics["train/loss"] == 10 / 8 and run.info.status == "FINISHED"
    assert [text for text in warnings if "1 damaged line skipped" in text]


def test_files_that_are_none_are_said_and_left(home, folder):
    folder.media.mkdir()
    (folder.media / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    journal = JournalWriter(folder)
    for name in ("gone.png", "torn.png"):
        journal.append("image", key=name, step=1, path=journal.relative_path(folder.media / name))
    journal.close()
    _, warnings = synced(home)
    for name in ("gone.png", "torn.png"):
        (text,) = [text for text in warnings if f"media/{name}" in text]
        assert "MLflow does not get it" in text


def test_a_journal_that_cannot_be_read_costs_its_run_alone(home, folder, new_run):
    odd = new_run("odd")
    odd.journal.mkdir()
    found = sync_runs(list_runs(home), home, warn=pytest.fail)
    results = {result.run_id: result for result in found}
    assert "cannot be read (" in results[odd.run_id].fault
    assert results[folder.run_id].sent == 12 and results[folder.run_id].left == 0
