"""Metrics for scrapers over HTTP: valid at every moment, on loopback alone."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import ditlab
from ditlab.errors import UserError
from ditlab.runs.servers import MetricsServer
from support.command import run_here
from support.trainings.workers import tiny


@contextmanager
def taken_port() -> Iterator[int]:
    """A port of loopback that another socket listens on."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def free_port() -> int:
    with taken_port() as port:
        return port


def ask(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())


def test_the_file_is_served_as_it_is_and_what_cannot_be_read_is_an_answer(tmp_path):
    path, port = tmp_path / "openmetrics.txt", free_port()
    with MetricsServer(port) as server:
        for follows in (False, True):
            if follows:
                server.follow(path)
            status, content, headers = ask(port)
            assert (status, content, headers["Content-Type"]) == (200, b"# EOF\n", CONTENT_TYPE)
        path.write_bytes(b"# TYPE a gauge\na 1\n# EOF\n")
        assert ask(port)[1] == path.read_bytes() and ask(port, "/metrics?name=a")[1] == path.read_bytes()
        assert ask(port, method="HEAD")[:2] == (200, b"") and ask(port, method="POST")[0] == 501
        assert [ask(port, other)[0] for other in ("/", "/metrics/../run.json", "/openmetrics.txt")] == [404] * 3
        for host in ("evil.example", "127.0.0.1.evil.example", ""):
            assert ask(port, Host=host)[0] == 403, host
        path.unlink()
        path.mkdir()
        assert ask(port)[0] == 503
        with pytest.raises(OSError, match="refused"), closing(socket.socket()) as other:
            other.connect(("127.0.0.2", port))
    with pytest.raises(OSError, match="refused"):
        ask(port)


def test_a_port_that_cannot_be_listened_on_is_one_clear_error(spec, home, capfd, monkeypatch):
    with taken_port() as port:
        ended = run_here(capfd, monkeypatch, "train", str(spec), "--local", "--metrics-port", str(port))
        assert ended.code == 2 and f"--metrics-port {port} on 127.0.0.1" in ended.err and "another port" in ended.err
        assert not list(home.glob("train/*"))
    for wrong in ("0", "65536", "-1", "http"):
        ended = run_here(capfd, monkeypatch, "train", str(spec), "--local", "--metrics-port", wrong)
        assert ended.code == 2 and "--metrics-port" in ended.err and "Traceback" not in ended.err
    with pytest.raises(UserError, match="metrics_port=0 is no port"):
        ditlab.train(tiny(), local=True, metrics_port=0)


def test_a_training_is_scraped_while_it_runs(home):
    """The values of a step are there while the run trains, and its last ones stay in its folder."""
    port, seen = free_port(), []

    def scrape(progress: object) -> None:
        families = text_string_to_metric_families(ask(port)[1].decode())
        seen.append({sample.name: sample.value for family in families for sample in family.samples})

    result = ditlab.train(tiny(training__steps=20), local=True, metrics_port=port, on_progress=scrape)
    assert seen[0].get("ditlab_running", 1) == 1 and seen[-1]["ditlab_planned_steps"] == 20
    last = (result.folder / "openmetrics.txt").read_text()
    found = {sample.name: sample.value for each in text_string_to_metric_families(last) for sample in each.samples}
    assert found["ditlab_running"] == 0 and found["ditlab_steps"] == 20 and found["ditlab_samples_total"] == 20 * 32
    summary = result.run.time()
    assert summary.num_steps == 20 and summary.rows()
