"""A run whose requests an MLflow server with accounts refuses loses no point."""

from collections.abc import Callable, Iterator

import mlflow
import pytest
from click.testing import CliRunner

from ditlab.cli.runs.commands import runs
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.tracking.tracker import RunTracker
from ditlab_addons.doctor.machine import store_fault
from support.served import PASSWORD, Served, account, guarded

pytestmark = pytest.mark.slow  # a server of its own with accounts: 30 s

NewRun = Callable[..., RunFolder]
WRONG = "wrong-horse-battery"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("closed")
    with guarded(root / "mlflow", root / "server.log", account()) as server:
        yield server


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has no account."""
    for name in account():
        monkeypatch.delenv(name, raising=False)


def log_in(monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    for name, value in account(password).items():
        monkeypatch.setenv(name, value)


def test_a_refusal_says_what_to_set(
    closed: Served, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    assert (
        f"MLflow at {closed.url} refuses this (401: " in (said := store_fault(closed.url, home))
        and remedy in said
    )
    log_in(monkeypatch, WRONG)
    assert WRONG not in (said := store_fault(closed.url, home)) and remedy in said
    log_in(monkeypatch)
    assert store_fault(closed.url, home) == ""


@pytest.mark.timeout(240)
@pytest.mark.parametrize("password", [None, WRONG])
def test_a_refused_run_goes_on_and_is_sent_later(
    closed: Served,
    home: Home,
    new_run: NewRun,
    monkeypatch: pytest.MonkeyPatch,
    password: str | None,
) -> None:
    if password:
        log_in(monkeypatch, password)
    url, warnings = closed.url, list[str]()
    folder = new_run(f"refused-{password}", tracking_uri=url)
    tracker = RunTracker(folder, url, home, warn=warnings.append)
    tracker.start(f"refused-{password}", "refused", "dit", {"depth": "9"})
    for step in range(1, 51):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    tracker.log_text("a note", "note.txt")
    tracker.end("finished")
    left = tracker.close(10)
    assert left > 50
    (warning,) = warnings
    assert url in warning and "(401: " in warning and "MLFLOW_TRACKING_USERNAME" in warning
    assert "training goes on" in warning and WRONG not in warning
    with pytest.raises(UserError, match=r"takes nothing of run .*401"):
        CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    log_in(monkeypatch)
    CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    client = mlflow.MlflowClient(url)
    experiment = client.get_experiment_by_name("refused")
    (run,) = client.search_runs(
        [experiment.experiment_id], f"attributes.run_name = 'refused-{password}'"
    )
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in points] == list(range(1, 51)) and run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["note.txt"]
