"""A server that is down, hangs or starts late costs no step and loses no point."""

import json
import signal
import time
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from ditlab.cli.runs.commands import runs
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import JournalTransfer
from support.clusters.faults import wait_until
from support.clusters.nodes import free_ports
from support.damage import refused
from support.proxy import Proxy
from support.stored import Stored, draw

STEPS = 2000


def points(uri, mlflow_run_id):
    found = MlflowClient(uri).get_metric_history(mlflow_run_id, "train/loss")
    return sorted((m.step, m.value) for m in found)


def test_a_server_that_comes_after_the_run_gets_everything_once(server, home, new_run, monkeypatch):
    """Nothing listens at the address during the run; afterwards the server answers there."""
    server.start()
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    attempts = Mock(wraps=JournalTransfer.send_pending)
    monkeypatch.setattr(
        JournalTransfer, "send_pending", lambda *each, **more: attempts(*each, **more)
    )
    monkeypatch.setattr("ditlab.tracking.upload._POLL_INTERVAL", 0.1)
    folder = new_run(tracking_uri=uri)
    warnings = []
    tracker = RunTracker(folder, uri, home, warn=warnings.append)
    tracker.start("digits-dit", "outage", "dit", {"depth": "9"})
    begin = time.monotonic()
    for step in range(STEPS):
        tracker.journal.log_metrics(step, {"train/loss": 1 / (step + 1), "train/lr": 1e-4})
    tracker.log_text("hello", "note.txt")
    tracker.end("finished")
    assert time.monotonic() - begin < 2  # no call waited for a server
    wait_until(lambda: attempts.call_count >= 3, 60, "three attempts")
    assert tracker.close(1) == STEPS + 5
    assert len(warnings) == 1 and uri in warnings[0]

    def synced(*arguments):
        command = ["sync", *arguments, "--json"]
        done = CliRunner().invoke(runs, command, catch_exceptions=False)
        return json.loads(done.stdout.splitlines()[-1])

    with refused("does not answer"):
        synced()
    with Proxy(server.uri, port):
        sent = {"run_id": folder.run_id, "sent": STEPS + 5, "left": 0}
        assert synced() == {"synced": [sent], "refilled": None}
        number = JournalTransfer(folder, uri, home, warnings.append).cursor.mlflow_run_id
        assert points(uri, number) == [(step, 1 / (step + 1)) for step in range(STEPS)]
        assert synced(folder.run_id)["synced"][0]["sent"] == 0


@pytest.fixture
def run(server, home, new_run):
    """A run that has started at the server."""
    server.start()
    tracker = RunTracker(new_run(tracking_uri=server.uri), server.uri, home)
    tracker.start("digits-dit", "outage", "dit")
    return tracker


def test_closing_waits_no_longer_than_its_timeout_for_a_server_that_hangs(server, run):
    server.signal(signal.SIGSTOP)
    begin = time.monotonic()
    try:
        run.journal.log_metrics(1, {"train/loss": 1.0})
        assert run.close(1.0) > 0
        assert time.monotonic() - begin < 3
    finally:
        server.signal(signal.SIGCONT)


def test_pictures_and_files_go_through_the_server(run):
    run.log_image("samples", 5, draw(run.folder.media / "samples.png"))
    inner = run.folder.path / "tree" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("a")
    run.log_artifact(inner.parent, "tree")
    assert run.close(30) == 0
    found = Stored(run)
    assert len(found.files("images")) == 4 and found.files("tree/inner") == ["tree/inner/a.txt"]
