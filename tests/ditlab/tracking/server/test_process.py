"""`ditlab ui`: the server's command and its options, and one server from its start to Ctrl-C."""

import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

from ditlab.cli.pages.commands import ui
from ditlab.errors import RunFailed
from ditlab.tracking.records import create_run
from ditlab.tracking.server import MlflowServer
from ditlab.tracking.tracker import RunTracker
from support.clusters.nodes import free_ports
from support.damage import refused
from support.served import served
from support.stored import Stored


def start(home, port, *options):
    ui.main(["--home", str(home.root), "--port", str(port), *options], standalone_mode=False)


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_the_ui_opens_on_the_newest_runs_experiment_quietly_and_ends_with_its_terminal(
    home, tmp_path
):
    for experiment in ("first", "second"):
        tracker = RunTracker(create_run(home, "digits", family="dit", spec_hash=""), None, home)
        tracker.start("digits", experiment, "dit")
        assert tracker.close(30) == 0
    log = tmp_path / "ui.log"
    with served(home.root, log=log, end=signal.SIGHUP) as server:
        with urllib.request.urlopen(server.url, timeout=60) as page:
            assert b"<title>MLflow</title>" in page.read()
        assert server.status("/", Host="elsewhere.example") == 403
        # one process imports MLflow and serves
        assert len(server.command_lines().splitlines()) == 1
        number = Stored(tracker).experiment  # of the second
        runs = f"{server.url}/#/experiments/{number}/runs"
        assert server.page == f"{runs}?workflowType=machine_learning&viewStateShareKey=ditlab"
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url, timeout=2)
    for line in log.read_text().splitlines():
        assert "waiting up to" in line or server.page in line
    assert not list(home.root.glob("mlflow-server-*.log"))


def test_a_server_that_ends_at_once_leaves_its_log_and_its_last_line(home, monkeypatch):
    monkeypatch.setattr(
        MlflowServer, "_command", lambda self: ["sh", "-c", "echo begun; echo no database; exit 3"]
    )
    (port,) = free_ports(1)
    with refused(rf"ended with code 3; its log is .*{port}\.log: no database", RunFailed):
        start(home, port)
    log = home.root / f"mlflow-server-{port}.log"
    assert log.read_text() == "begun\nno database\n"
    log.unlink()
    log.mkdir()
    with refused(r"\.log cannot be written \(Is a directory\); remove it"):
        start(home, port)


def test_a_port_in_use_is_the_users_error(home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with refused(f"--port {port}"):
            start(home, port)


def test_wait_for_the_server_is_bounded_and_named(home, monkeypatch, capfd):
    """A process that sleeps in the server's place never answers."""
    monkeypatch.setenv("DITLAB_PROGRESS_SECONDS", "0.3")
    monkeypatch.setattr(MlflowServer, "_command", lambda self: ["sleep", "60"])
    (port,) = free_ports(1)
    with refused(
        r"did not answer at http://127\.0\.0\.1:\d+ within 1 s; .* --wait SECONDS", RunFailed
    ):
        start(home, port, "--wait", "1")
    waiting = (
        f"waiting up to 1 s (--wait) for the MLflow server to answer at http://127.0.0.1:{port}"
    )
    assert waiting in capfd.readouterr().err


@pytest.mark.slow
def test_pages_begin_with_model_training(monkeypatch, home):
    """Where the package is installed, MLflow finds the app that its metadata names, and each page
    sets the choice.
    """
    text = (Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8")
    points = tomllib.loads(text)["project"]["entry-points"]
    ((name, place),) = points["mlflow.app"].items()
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [name])
    assert MlflowServer(home, free_ports(1)[0])._command()[-2:] == ["--app-name", name]
    script = f"""
from ditlab.tracking.server import {place.rpartition(":")[2]} as make
make()
from mlflow.server import app
with app.test_client() as client:
    print(client.get("/").text[:300], client.get("/health").text)
"""
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert '<head><script>const key="mlflow.workflowType_v1"' in shown and shown.endswith("OK\n")
