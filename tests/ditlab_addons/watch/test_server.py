"""A run's live page: on loopback, read only, by increments, to names of this machine alone."""

import http.client
import json
import threading
from contextlib import contextmanager

import pytest

from ditlab.runs.locks import lock_run
from ditlab_addons.watch import live_page
from ditlab_addons.watch.live_page import LivePage, is_own_name
from support.damage import refused
from support.journaled import JournaledRun

TIMED = {"result", "top", "timeline"}
"""Sections of a run in training that change as time goes on."""


@pytest.fixture
def run(home, monkeypatch):
    """A run that has begun, whose page is made anew at every question."""
    monkeypatch.setattr(live_page, "_LEAST_AGE", 0.0)
    run = JournaledRun(home)
    run.start()
    run.evaluate(0)
    run.train(range(1, 11))
    run.save()
    return run


class Browser:
    """Requests to one server."""

    def __init__(self, port):
        self.port = port

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content, dict(answer.headers)

    def changes(self, have):
        asked = ",".join(f"{key}:{digest}" for key, digest in have.items())
        status, content, _ = self.ask(f"/update?have={asked}")
        assert status == 200, content
        return json.loads(content)


@contextmanager
def served(run, warnings=None):
    said = [] if warnings is None else warnings
    with LivePage(run.home, run.folder, 0, said.append) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Browser(page.server_port)
        finally:
            page.shutdown()
            thread.join(10)
    assert not thread.is_alive()


def test_only_what_changed_is_sent(run):
    with served(run) as browser, lock_run(run.folder):
        before = {path.name for path in run.folder.path.iterdir()}
        status, page, headers = browser.ask("/")
        assert status == 200 and b'data-update="update"' in page
        assert headers["Cache-Control"] == "no-store"
        first = browser.changes({})
        have = {each["key"]: each["digest"] for each in first["sections"]}
        assert set(have) == {"top", *first["order"]} and "training" in first["state"]
        steady = [digest for key, digest in have.items() if key not in TIMED]
        assert len(steady) >= 5
        assert all(f'data-digest="{digest}"'.encode() in page for digest in steady)
        run.train(range(11, 21))
        run.evaluate(20)
        run.save()
        second = browser.changes(have)
        changed = {each["key"] for each in second["sections"]}
        assert {"top", "result", "curves", "timeline"} <= changed
        assert not changed & {"spec", "parameters"}
        samples = next(each["html"] for each in second["sections"] if each["key"] == "result")
        assert "step 20" in samples and "data:" not in samples
        have |= {each["key"]: each["digest"] for each in second["sections"]}
        again = {each["key"] for each in browser.changes(have)["sections"]}
        assert again <= TIMED
    assert {path.name for path in run.folder.path.iterdir()} == before


def test_pictures_are_sent_by_the_names_that_the_page_gives_and_nothing_else_is(run):
    with served(run) as browser:
        html = next(
            each["html"] for each in browser.changes({})["sections"] if each["key"] == "result"
        )
        address = html.split('<img src="')[1].split('"')[0]
        status, content, headers = browser.ask(f"/{address}")
        assert status == 200 and content == (run.folder.media / "samples-00000000.png").read_bytes()
        assert headers["Content-Type"] == "image/png"
        assert headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/run.json", "/pictures/../../run.json", "//etc/passwd", "/%2e%2e/x"):
            assert browser.ask(path)[0] == 404, path
        (run.folder.media / "samples-00000000.png").write_bytes(b"no picture")
        assert browser.ask(f"/{address}")[0] == 503


def test_names_of_others_are_refused(run):
    with served(run) as browser:
        for path in ("/", "/update", "/pictures/x"):
            status, content, headers = browser.ask(path, Host="127.0.0.1.evil.example")
            assert status == 403 and b"loopback" in content
            assert "Access-Control-Allow-Origin" not in headers


def test_names_of_this_machine():
    own = ("localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "[::1]")
    others = ("localhost:x", "[::1]x", "::1", "evil.example:80", "[evil]:1", "a@127.0.0.1", "")
    assert all(is_own_name([each]) for each in own)
    assert not any(is_own_name([each]) for each in others)
    assert not is_own_name([]) and not is_own_name(["localhost"] * 2)


def test_nothing_can_be_changed_by_a_request(run):
    with served(run) as browser:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert browser.ask("/", method)[0] == 501
        status, content, headers = browser.ask("/", "HEAD")
        assert status == 200 and content == b"" and int(headers["Content-Length"]) > 1000
        policy = browser.ask("/")[2]["Content-Security-Policy"]
        rules = {"default-src 'none'", "frame-ancestors 'none'", "connect-src 'self'"}
        assert rules <= {*policy.split("; ")}


def test_a_record_that_is_damaged_meanwhile_leaves_the_page_as_it_was(run):
    warnings = []
    with served(run, warnings) as browser:
        have = {each["key"]: each["digest"] for each in browser.changes({})["sections"]}
        whole = run.folder.record.read_bytes()
        run.folder.record.write_bytes(b"{")
        found = browser.changes(have)
        assert found["kind"] == "lost"
        assert "cannot be read" in found["state"]
        assert not found["sections"]
        run.folder.record.write_bytes(whole)
        assert browser.changes(have)["kind"] == "running"
    assert len(warnings) == 1


def test_a_journal_that_grows_is_replaced_and_goes(run):
    followed = LivePage(run.home, run.folder, 0, print)
    followed.server_close()
    followed.current_page()
    run.train(range(11, 13))
    with run.folder.journal.open("ab") as file:
        file.write(b"".join(run.lines[-2:]) + b'{"kind":"met')  # in writing
    assert "step 12 of" in followed.current_page().summary
    run.lines = run.lines[:-5]  # another file, shorter than what was read
    run.save()
    assert "step 7 of" in followed.current_page().summary
    run.folder.journal.unlink()
    assert "step 0 of" in followed.current_page().summary


def test_a_port_in_use_is_said(run):
    with LivePage(run.home, run.folder, 0, print) as page, refused("give another port"):
        LivePage(run.home, run.folder, page.server_port, print)
