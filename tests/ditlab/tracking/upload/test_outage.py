"""A server that is down, hangs or starts late costs no step and loses no point."""

import signal
import time

import pytest
from mlflow import MlflowClient

from ditlab.tracking.upload import JournalTransfer
from support.clusters.faults import wait_until
from support.clusters.nodes import free_ports
from support.proxy import Proxy
from support.stored import Stored

STEPS = 2000


@pytest.mark.slow
def test_a_server_that_comes_after_the_run_gets_everything_once(
    server, home, new_run, tracked, monkeypatch, ditlab
):
    """Nothing listens at the address during the run; afterwards the server answers there."""
    server.start()
    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    monkeypatch.setattr("ditlab.tracking.upload._POLL_INTERVAL", 0.1)
    folder = new_run(tracking_uri=uri)
    tracker = tracked(folder, uri, params={"depth": "9"})
    begin = time.monotonic()
    for step in range(STEPS):
        tracker.journal.log_metrics(step, {"train/loss": 1 / (step + 1), "train/lr": 1e-4})
    tracker.log_text("hello", "note.txt")
    tracker.end("finished")
    assert time.monotonic() - begin < 2  # no call waited for a server
    wait_until(lambda: tracker.said, 60, "a warning, before others fail as well")
    assert tracker.close(1) == STEPS + 5
    (warning,) = tracker.said
    assert uri in warning

    said = ditlab("runs", "sync")
    assert said.code == 2 and "does not answer" in said.err
    with Proxy(server.uri, port):
        sent = {"run_id": folder.run_id, "sent": STEPS + 5, "left": 0}
        assert ditlab("runs", "sync", "--json").json == {"synced": [sent], "refilled": None}
        number = JournalTransfer(folder, uri, home, tracker.said.append).cursor.mlflow_run_id
        points = MlflowClient(uri).get_metric_history(number, "train/loss")
        expected = [(step, 1 / (step + 1)) for step in range(STEPS)]
        assert sorted((point.step, point.value) for point in points) == expected
        (again,) = ditlab("runs", "sync", folder.run_id, "--json").json["synced"]
        assert again["sent"] == 0


@pytest.fixture
def run(server, new_run, tracked):
    """A run that has started at the server."""
    server.start()
    return tracked(new_run(tracking_uri=server.uri), server.uri)


def test_closing_waits_no_longer_than_its_timeout_for_a_server_that_hangs(server, run):
    server.signal(signal.SIGSTOP)
    begin = time.monotonic()
    try:
        run.journal.log_metrics(1, {"train/loss": 1.0})
        assert run.close(1.0) > 0
        assert time.monotonic() - begin < 3
    finally:
        server.signal(signal.SIGCONT)


def test_folders_go_through_the_server(run):
    inner = run.folder.path / "tree" / "inner"
    inner.mkdir(parents=True)
    (inner / "a.txt").write_text("a")
    run.log_artifact(inner.parent, "tree")
    assert run.close(30) == 0
    found = Stored(run)
    assert found.files("tree/inner") == ["tree/inner/a.txt"]
