"""A server whose disk is full: its own words reach the person, though MLflow's client drops them."""

import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ditlab.home import Home, RunFolder
from ditlab.tracking.access import outage_reason
from ditlab.tracking.records import read_record
from ditlab.tracking.tracker import RunTracker
from ditlab.tracking.upload import sync_runs
from support.disk import small_disk

DROPPED = RuntimeError("Max retries exceeded (Caused by ResponseError('too many 503 error responses'))")
FULL = "(sqlite3.OperationalError) database or disk is full"


@pytest.fixture
def answers() -> Iterator[tuple[str, list[tuple[int, bytes]], list[Any]]]:
    """Address of a server that gives the answers (status, body) of a list, and the requests that it got."""
    given: list[tuple[int, bytes]] = []
    asked: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, json.loads(body), self.headers.get("Authorization")))
            status, answer = given.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", given, asked
    server.shutdown()
    server.server_close()


def test_the_servers_own_words_are_asked_for(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, given, asked = answers
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "some-password")
    for status, body, reason in (
        (503, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": f"{FULL}\n[SQL: INSERT ...]"}, FULL),
        (503, {"message": 7}, str(DROPPED)),
        (503, [1], str(DROPPED)),
        (200, {}, str(DROPPED)),
    ):
        given.append((status, json.dumps(body).encode()))
        assert outage_reason(DROPPED, uri, "abc") == reason
    given.append((502, b"<html>"))
    assert outage_reason(DROPPED, uri, "abc") == str(DROPPED)
    assert {(path, body["run_id"], body["key"]) for path, body, _ in asked} == {
        ("/api/2.0/mlflow/runs/set-tag", "abc", "ditlab.outage")
    }
    assert len({body["value"] for _, body, _ in asked}) == len(asked)  # an equal value would not be written
    assert all(authorization.startswith("Basic ") for *_, authorization in asked)


def test_no_server_is_asked_about_other_errors(answers: Any) -> None:
    uri, _, asked = answers
    assert outage_reason(RuntimeError(f"{FULL}\n[SQL: ...]"), uri, "abc") == FULL
    assert outage_reason(DROPPED, uri, None) == str(DROPPED)
    assert outage_reason(DROPPED, "http://127.0.0.1:9", "abc") == str(DROPPED)
    assert asked == []


@pytest.mark.slow  # a server of its own
def test_a_full_disk_of_a_server(
    home: Home, tmp_path: Path, mlflow_template: Path, new_run: Callable[..., RunFolder], own_server: Any
) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        shutil.copyfile(mlflow_template, disk.path / "server.db")
        server = own_server(disk.path)
        server.start()
        folder = new_run(tracking_uri=server.uri)
        warnings: list[str] = []
        with RunTracker(folder, server.uri, home, warn=warnings.append) as tracker:
            tracker.start("digits-dit", "full", "dit")
            tracker.journal.log_metrics(0, {"train/loss": 1.0})
            assert tracker.close(60) == 0 and warnings == []
        disk.fill()
        with RunTracker(folder, server.uri, home, warn=warnings.append) as tracker:
            tracker.set_tags({f"tag{number}": "v" * 4000 for number in range(400)})
            assert tracker.close(60) > 0
        assert any("database or disk is full" in warning for warning in warnings), warnings
        (result,) = sync_runs([read_record(folder)], home, warn=warnings.append)
        assert "database or disk is full" in result.fault
