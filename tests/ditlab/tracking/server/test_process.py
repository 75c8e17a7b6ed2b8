"""`ditlab ui`: the server's command and its options, and one server from its start to Ctrl-C."""

import inspect
import json
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import mlflow.server
import pytest
from click.testing import CliRunner

from ditlab.cli.pages.commands import ui
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.tracking.records import create_run
from ditlab.tracking.server import Administrator, MlflowServer, ServerOptions, artifact_location
from ditlab.tracking.tracker import RunTracker
from support.clusters.nodes import free_ports
from support.served import PASSWORD, account, served


def invoke(*arguments: str) -> None:
    CliRunner().invoke(ui, arguments, catch_exceptions=False)


@pytest.mark.slow  # `test_access.py` starts one with accounts, and ends it by Ctrl-C
@pytest.mark.usefixtures("store")
def test_the_ui_opens_on_the_newest_runs_experiment_quietly_and_ends_with_its_terminal(
    home: Home, tmp_path: Path
) -> None:
    for experiment in ("first", "second"):
        tracker = RunTracker(create_run(home, "digits", family="dit", spec_hash=""), None, home)
        tracker.start("digits", experiment, "dit")
        assert tracker.close(30) == 0
    log = tmp_path / "ui.log"
    with served(home.root, log=log, end=signal.SIGHUP) as server:
        with urllib.request.urlopen(server.url, timeout=60) as page:
            assert b"<title>MLflow</title>" in page.read()
        number = json.loads(server.ask("/api/2.0/mlflow/experiments/get-by-name?experiment_name=second")[1])
        number = number["experiment"]["experiment_id"]
        runs = f"{server.url}/#/experiments/{number}/runs"
        assert server.page == f"{runs}?workflowType=machine_learning&viewStateShareKey=ditlab"
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url, timeout=2)
    noise = [line for line in log.read_text().splitlines() if "waiting up to" not in line and server.page not in line]
    assert noise == []
    assert not list(home.root.glob("mlflow-server-*.log"))


def test_a_server_that_ends_at_once_leaves_its_log_and_its_last_line(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MlflowServer, "_command", lambda self: ["sh", "-c", "echo begun; echo no database; exit 3"])
    (port,) = free_ports(1)
    with pytest.raises(RunFailed, match=rf"ended with code 3; its log is .*{port}\.log: no database"):
        ui.main(["--home", str(home.root), "--port", str(port)], standalone_mode=False)
    assert (home.root / f"mlflow-server-{port}.log").read_text() == "begun\nno database\n"
    (home.root / f"mlflow-server-{port}.log").unlink()
    (home.root / f"mlflow-server-{port}.log").mkdir()
    with pytest.raises(UserError, match=r"\.log cannot be written \(Is a directory\); remove it"):
        ui.main(["--home", str(home.root), "--port", str(port)], standalone_mode=False)


def test_a_port_in_use_is_the_users_error(home: Home) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}"):
            invoke("--port", str(port))


def test_clients_send_artifacts_through_a_shared_server_alone(home: Home, tmp_path: Path) -> None:
    """A private server names the folder to its clients, which write into it themselves."""

    def command(options: ServerOptions) -> str:
        return " ".join(MlflowServer(home, "127.0.0.1", free_ports(1)[0], options)._command())

    private = command(ServerOptions())
    assert f"--default-artifact-root {home.artifacts}" in private and "--serve-artifacts" not in private
    kept = artifact_location(f"{tmp_path}/below/../kept")
    for options, folder in (
        (ServerOptions(Administrator("ann", PASSWORD)), home.artifacts),
        (ServerOptions(database=f"sqlite:///{tmp_path}/runs.db"), home.artifacts),
        (ServerOptions(artifacts=kept), tmp_path / "kept"),
    ):
        shared = command(options)
        assert f"--artifacts-destination {folder} " in shared and "--serve-artifacts" in shared
        assert "--default-artifact-root" not in shared and PASSWORD not in shared


@pytest.mark.parametrize(
    ("name", "password", "message"),
    [
        ("", PASSWORD, "--auth needs MLFLOW_TRACKING_USERNAME"),
        ("ann", "", "--auth needs MLFLOW_TRACKING_PASSWORD"),
        ("ann", "elevenchars", "at least 12 characters"),
        ("ann", "password1234", "easily guessed"),
        ("ann", "Administrator", "easily guessed"),
        ("administrators", "administrators123", "easily guessed"),
        ("ann", "aaaaaaaaaaaaaaaa", "easily guessed"),
        ("a:b", PASSWORD, "holds a colon"),
    ],
)
def test_there_is_no_default_and_no_weak_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, password: str, message: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    with pytest.raises(UserError, match=message) as refusal:
        invoke("--auth", "--home", str(tmp_path / "home"))
    assert not password or password not in str(refusal.value)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "0.0.0.0"], "add --auth, or --no-auth"),
        (["--host", "10.0.0.5"], "add --auth, or --no-auth"),
        (["--allowed-hosts", "*"], r"--allowed-hosts \* is no host's name"),
        (["--allowed-hosts", "a.lab,http://b.lab"], "--allowed-hosts http://b.lab is no host's name"),
        (["--database", "postgresql://ann:pass-word@db/runs"], r"--database postgresql://ann:\*\*\*@db/runs shows"),
        (["--database", "http://db/runs"], "--database=http://db/runs is no database"),
        (["--database", "runs.db"], "--database='runs.db' is no tracking address"),
        (["--artifacts", "s3://key:sec/ret@bucket"], "--artifacts=s3://... holds a password"),
    ],
)
def test_a_wrong_option_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match=message) as refusal:
        invoke(*arguments)
    assert "pass-word" not in str(refusal.value) and "sec/ret" not in str(refusal.value)


def test_an_account_file_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in account().items():
        monkeypatch.setenv(variable, value)
    Home(tmp_path).mlflow_users.touch(0o644)
    with pytest.raises(UserError, match=r"mlflow-users\.db can be read by others"):
        invoke("--auth", "--home", str(tmp_path), "--port", str(free_ports(1)[0]))


def test_accounts_need_a_package_that_a_plain_installation_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in account().items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setitem(sys.modules, "flask_wtf", None)
    with pytest.raises(UserError, match=r"--auth needs the Python module flask_wtf.*pip install 'ditlab\[cluster\]'"):
        invoke("--auth", "--home", str(tmp_path), "--port", str(free_ports(1)[0]))
    assert not Home(tmp_path).mlflow_users.exists()


def test_wait_for_the_server_is_bounded_and_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that sleeps in the server's place never answers."""
    monkeypatch.setenv("DITLAB_PROGRESS_SECONDS", "0.3")
    monkeypatch.setattr(MlflowServer, "_command", lambda self: ["sleep", "60"])
    (port,) = free_ports(1)
    with pytest.raises(RunFailed, match=r"did not answer at http://127\.0\.0\.1:\d+ within 1 s; .* --wait SECONDS"):
        ui.main(["--home", str(home.root), "--port", str(port), "--wait", "1"], standalone_mode=False)
    assert f"waiting up to 1 s (--wait) for the MLflow server to answer at http://127.0.0.1:{port}" in (
        capfd.readouterr().err
    )


@pytest.mark.slow
def test_pages_begin_with_model_training(monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    """Where the package is installed, MLflow finds the app that its metadata names, and each page sets the choice."""
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, place),) = project["entry-points"]["mlflow.app"].items()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [name])
    assert MlflowServer(home, "127.0.0.1", 0, ServerOptions())._command()[-4:-2] == ["--app-name", name]
    guarded = MlflowServer(home, "127.0.0.1", 0, ServerOptions(Administrator("ann", PASSWORD)))
    assert guarded._command()[-3:-1] == ["--app-name", "basic-auth"]
    script = f"""
from ditlab.tracking.server import {place.rpartition(":")[2]} as make
make()
from mlflow.server import app
with app.test_client() as client:
    print(client.get("/").text[:300], client.get("/health").text)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert '<head><script>const key="mlflow.workflowType_v1"' in shown and shown.endswith("OK\n")


def test_mlflow_starts_its_server_by_the_name_that_is_replaced() -> None:
    """Else `serve_mlflow.py` replaces nothing, and MLflow is imported twice, by two processes."""
    assert "_exec_cmd(" in inspect.getsource(mlflow.server._run_server)
