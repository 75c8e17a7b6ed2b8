"""A server that is down, hangs or starts late costs no step and loses no point."""

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from ditlab.cli.runs.commands import runs
from ditlab.home import Home, RunFolder
from ditlab.tracking.history import metric_history
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import JournalTransfer
from support.clusters.nodes import free_ports
from support.proxy import Proxy

NewRun = Callable[..., RunFolder]
STEPS = 2000


def points(uri: str, mlflow_run_id: str, key: str) -> list[tuple[int, float]]:
    import mlflow

    return sorted(
        (m.step, m.value) for m in mlflow.MlflowClient(uri).get_metric_history(mlflow_run_id, key)
    )


def test_a_server_that_comes_after_the_run_gets_everything_once(
    server: Any, home: Home, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens at the address during the run; afterwards the server answers there."""
    server.start()
    (port,) = free_ports(1)
    uri, attempts = f"http://127.0.0.1:{port}", list[float]()
    send_pending = JournalTransfer.send_pending

    def counted(transfer: JournalTransfer, *arguments: Any, **more: Any) -> None:
        attempts.append(time.monotonic())
        send_pending(transfer, *arguments, **more)

    monkeypatch.setattr(JournalTransfer, "send_pending", counted)
    monkeypatch.setattr("ditlab.tracking.upload._POLL_INTERVAL", 0.1)
    folder = new_run(tracking_uri=uri)
    warnings: list[str] = []
    tracker = RunTracker(folder, uri, home, warn=warnings.append)
    tracker.start("digits-dit", "outage", "dit", {"depth": "9"})
    begin = time.monotonic()
    for step in range(STEPS):
        tracker.journal.log_metrics(step, {"train/loss": 1 / (step + 1), "train/lr": 1e-4})
    tracker.log_text("hello", "note.txt")
    tracker.end("finished")
    assert time.monotonic() - begin < 2  # no call waited for a server
    deadline = time.monotonic() + 60
    while len(attempts) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert tracker.close(1) == STEPS + 5
    assert len(warnings) == 1 and uri in warnings[0]
    assert len(metric_history(folder)["train/loss"].steps) == STEPS

    refused = CliRunner().invoke(runs, ["sync"])
    assert refused.exception is not None and "does not answer" in str(refused.exception)

    with Proxy(server.uri, port):
        done = CliRunner().invoke(runs, ["sync", "--json"], catch_exceptions=False)
        assert json.loads(done.stdout.splitlines()[-1]) == {
            "synced": [{"run_id": folder.run_id, "sent": STEPS + 5, "left": 0}],
            "refilled": None,
        }
        number = JournalTransfer(folder, uri, home, warnings.append).cursor.mlflow_run_id
        assert number is not None
        expected = [(step, 1 / (step + 1)) for step in range(STEPS)]
        assert points(uri, number, "train/loss") == expected

        again = CliRunner().invoke(runs, ["sync", folder.run_id, "--json"], catch_exceptions=False)
        assert json.loads(again.stdout.splitlines()[-1])["synced"][0]["sent"] == 0


def test_a_server_that_hangs_for_a_while_gets_everything_once(
    server: Any, home: Home, new_run: NewRun
) -> None:
    server.start()
    folder = new_run(tracking_uri=server.uri)
    tracker = RunTracker(folder, server.uri, home)
    tracker.start("digits-dit", "outage", "dit")
    for step in range(100):
        tracker.journal.log_metrics(step, {"train/loss": float(step)})
    while tracker.mlflow_run_id is None:
        time.sleep(0.05)
    server.signal(signal.SIGSTOP)
    try:
        begin = time.monotonic()
        for step in range(100, 200):
            tracker.journal.log_metrics(step, {"train/loss": float(step)})
            time.sleep(0.01)
        assert time.monotonic() - begin < 3
    finally:
        server.signal(signal.SIGCONT)
    tracker.end("finished")
    assert tracker.close(40) == 0
    assert points(server.uri, tracker.mlflow_run_id, "train/loss") == [
        (step, float(step)) for step in range(200)
    ]


def test_closing_waits_no_longer_than_its_timeout(server: Any, home: Home, new_run: NewRun) -> None:
    server.start()
    tracker = RunTracker(new_run(), server.uri, home)
    tracker.start("digits-dit", "outage", "dit")
    server.signal(signal.SIGSTOP)
    try:
        tracker.journal.log_metrics(1, {"train/loss": 1.0})
        begin = time.monotonic()
        assert tracker.close(1.0) > 0
        assert time.monotonic() - begin < 3
    finally:
        server.signal(signal.SIGCONT)


def test_pictures_and_files_go_through_the_server(server: Any, home: Home, new_run: NewRun) -> None:
    import mlflow
    from PIL import Image

    server.start()
    folder = new_run()
    tracker = RunTracker(folder, server.uri, home)
    tracker.start("digits-dit", "outage", "dit")
    folder.media.mkdir()
    Image.new("L", (16, 16), 200).save(folder.media / "samples.png")
    tracker.log_image("samples", 5, folder.media / "samples.png")
    (folder.path / "tree" / "inner").mkdir(parents=True)
    (folder.path / "tree" / "inner" / "a.txt").write_text("a")
    tracker.log_artifact(folder.path / "tree", "tree")
    assert tracker.close(30) == 0
    client = mlflow.MlflowClient(server.uri)
    assert len(client.list_artifacts(tracker.mlflow_run_id, "images")) == 4
    assert [file.path for file in client.list_artifacts(tracker.mlflow_run_id, "tree/inner")] == [
        "tree/inner/a.txt"
    ]
