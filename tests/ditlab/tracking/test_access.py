"""A run whose requests an MLflow server with accounts refuses loses no point."""

import pytest
from click.testing import CliRunner

from ditlab.cli.runs.commands import runs
from ditlab.errors import UserError
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.doctor.machine import store_fault
from support.served import PASSWORD, account, guarded
from support.stored import Stored

pytestmark = pytest.mark.slow  # a server of its own with accounts: 30 s

WRONG = "wrong-horse-battery"


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    root = tmp_path_factory.mktemp("closed")
    with guarded(root / "mlflow", root / "server.log", account()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_account(monkeypatch):
    """This process has no account."""
    for name in account():
        monkeypatch.delenv(name, raising=False)


def log_in(monkeypatch, password=PASSWORD):
    for name, value in account(password).items():
        monkeypatch.setenv(name, value)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("password", [None, WRONG])
def test_a_refused_run_goes_on_and_is_sent_later(
    closed, home, new_run, tracked, monkeypatch, password
):
    if password:
        log_in(monkeypatch, password)
    url = closed.url
    tracker = tracked(new_run(tracking_uri=url), url, params={"depth": "9"})
    for step in range(1, 51):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    tracker.log_text("a note", "note.txt")
    tracker.end("finished")
    left = tracker.close(10)
    assert left > 50
    (warning,) = tracker.said
    for words in (
        f"MLflow at {url} refuses this (401: ",
        "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        "training goes on",
    ):
        assert words in warning
    assert WRONG not in warning and "(401: " in store_fault(url, home)
    with pytest.raises(UserError, match=r"takes nothing of run .*401"):
        CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    log_in(monkeypatch)
    assert store_fault(url, home) == ""
    CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    with RunTracker(tracker.folder, url, home) as again:
        pass
    found = Stored(again)
    assert [step for step, _ in found.points("train/loss")] == list(range(1, 51))
    assert found.run.info.status == "FINISHED" and found.files() == ["note.txt"]
