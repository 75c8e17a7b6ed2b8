"""A server that refuses this process's name or password costs no training and loses no point."""

from collections.abc import Callable, Iterator
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner
from ditlab.runs.start import start_run

from ditlab.cli.runs import runs
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.spec.loading import load_experiment
from ditlab.tracking.access import check_access
from ditlab.tracking.tracker import RunTracker
from support.served import PASSWORD, Served, account, served

NewRun = Callable[..., RunFolder]
WRONG = "wrong-horse-battery"
SMALL = """\
name: small
model: {family: dit, image_size: 8, patch_size: 4, width: 32, depth: 1, num_heads: 2}
batch: {size: 32}
training: {steps: 4}
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("closed"), "--auth", **account()) as server:
        yield server


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No account, and none in a file of MLflow's either."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in account():
        monkeypatch.delenv(name, raising=False)


def known(monkeypatch: pytest.MonkeyPatch, password: str = PASSWORD) -> None:
    for name, value in account(password).items():
        monkeypatch.setenv(name, value)


def test_a_look_says_what_to_set(closed: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    without = check_access(closed.url) or ""
    assert without.startswith(f"MLflow at {closed.url} wants a name and password (401)") and remedy in without
    known(monkeypatch, WRONG)
    refused = check_access(closed.url) or ""
    assert "refuses the name or password (401)" in refused and remedy in refused and WRONG not in refused
    known(monkeypatch)
    assert check_access(closed.url) is None
    assert check_access("http://127.0.0.1:9", 1) is None
    assert check_access(f"sqlite:///{tmp_path}/mlflow.db") is None


def test_an_account_in_mlflows_file_is_found(closed: Served, tmp_path: Path) -> None:
    (tmp_path / ".mlflow").mkdir()
    text = f"[mlflow]\nmlflow_tracking_username = ann\nmlflow_tracking_password = {PASSWORD}\n"
    (tmp_path / ".mlflow" / "credentials").write_text(text)
    assert check_access(closed.url) is None


def test_a_run_says_so_before_it_trains(
    closed: Served, home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", closed.url)
    experiment = load_experiment(tmp_path / "small.yaml")
    lines = start_run(experiment, None, local=True, remote=False, dry_run=False).lines
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert f"MLflow at {closed.url} wants a name and password (401)" in warning
    assert warning.endswith("training goes on, `ditlab runs sync` sends what is missing.")
    known(monkeypatch)
    lines = start_run(experiment, None, local=True, remote=False, dry_run=False).lines
    assert not [line for line in lines if line.startswith("warning")]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("password", [None, WRONG])
def test_a_refused_run_goes_on_and_is_sent_later(
    closed: Served, home: Home, new_run: NewRun, monkeypatch: pytest.MonkeyPatch, password: str | None
) -> None:
    if password:
        known(monkeypatch, password)
    warnings: list[str] = []
    folder = new_run(f"refused-{password}", tracking_uri=closed.url)
    tracker = RunTracker(folder, closed.url, home, warn=warnings.append)
    tracker.start(f"refused-{password}", "refused", "dit", {"depth": "9"})
    for step in range(1, 51):
        tracker.journal.log_metrics(step, {"train/loss": 1 / step})
    tracker.log_text("a note", "note.txt")
    tracker.end("finished")
    left = tracker.close(10)
    assert left > 50
    (warning,) = warnings
    assert closed.url in warning and "(401)" in warning and "MLFLOW_TRACKING_USERNAME" in warning
    assert "training goes on" in warning and WRONG not in warning
    with pytest.raises(UserError, match=r"\(401\); set MLFLOW_TRACKING_USERNAME .* and sync again\."):
        CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    known(monkeypatch)
    CliRunner().invoke(runs, ["sync"], catch_exceptions=False)
    client = mlflow.MlflowClient(closed.url)
    experiment = client.get_experiment_by_name("refused")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = 'refused-{password}'")
    points = client.get_metric_history(run.info.run_id, "train/loss")
    assert [point.step for point in points] == list(range(1, 51)) and run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["note.txt"]


def test_a_list_of_a_closed_server_is_one_sentence(closed: Served, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="wants a name and password"):
        CliRunner().invoke(runs, ["--tracking", closed.url], catch_exceptions=False)
    known(monkeypatch, WRONG)
    with pytest.raises(UserError, match="refuses the name or password"):
        CliRunner().invoke(runs, ["--tracking", closed.url], catch_exceptions=False)
    known(monkeypatch)
    assert CliRunner().invoke(runs, ["--tracking", closed.url], catch_exceptions=False).exit_code == 0
