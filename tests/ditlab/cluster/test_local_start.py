"""Start of a Ray instance that takes longer than Ray's own time: tried again, with words, for a while."""

import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from ditlab.cluster.session import WAIT_VARIABLE, end_attempt, start_wait, start_with_patience
from ditlab.errors import RunFailed, UserError

SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


class Starts:
    """Starts of which each takes 30 s, and the first fail; records what happens."""

    def __init__(self, *failures):
        self.failures, self.now, self.events, self.said = list(failures), 0.0, [], []

    def start(self):
        self.now += 30
        self.events.append("start")
        if self.failures:
            raise self.failures.pop(0)

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def run(self, monkeypatch, wait=300.0):
        monkeypatch.setattr("ditlab.cluster.session.time", self)
        start_with_patience(self.start, lambda: self.events.append("clean"), wait, self.said.append)


def test_slow_start_is_tried_again(monkeypatch):
    starts = Starts(Exception(SLOW), RuntimeError("Failed to start GCS.  Last 0 lines of error files"))
    starts.run(monkeypatch)
    assert starts.events == ["start", "clean", "start", "clean", "start"]
    assert starts.said == [
        "Ray has not started after 30 s, as this machine is busy; trying again for up to 270 s more "
        "(DITLAB_RAY_WAIT=300).",
        "Ray has not started after 62 s, as this machine is busy; trying again for up to 238 s more "
        "(DITLAB_RAY_WAIT=300).",
    ]


def test_start_that_is_slow_for_good_is_one_sentence(monkeypatch):
    starts = Starts(*[Exception(SLOW)] * 9)
    with pytest.raises(RunFailed) as failed:
        starts.run(monkeypatch, wait=60)
    assert starts.events == ["start", "clean"] * 2
    assert str(failed.value) == (
        f"Ray did not start on this machine within 62 s ({SLOW.rstrip('.')}); end other work, give it more time "
        "(DITLAB_RAY_WAIT=60 seconds now), or train without it: `ditlab train --local`."
    )


def test_other_failures_are_not_tried_again(monkeypatch):
    starts = Starts(OSError(28, "No space left on device"))
    with pytest.raises(RunFailed, match=r"cannot be started on this machine \(No space left on device\)"):
        starts.run(monkeypatch)
    assert starts.events == ["start", "clean"] and not starts.said


def test_wait_of_the_environment(monkeypatch):
    assert start_wait() == 300
    monkeypatch.setenv(WAIT_VARIABLE, "12.5")
    assert start_wait() == 12.5
    for text in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv(WAIT_VARIABLE, text)
        with pytest.raises(UserError, match=f"DITLAB_RAY_WAIT={text} is no time in seconds"):
            start_wait()


def test_processes_of_a_failed_start_end_and_others_stay(tmp_path):
    script = tmp_path / "ray" / "raylet.py"
    script.parent.mkdir()
    script.write_text("import time; time.sleep(60)")
    earlier = subprocess.Popen([sys.executable, script])
    before = set(psutil.Process().children())
    left = subprocess.Popen([sys.executable, script])
    ours = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ended = []
    try:
        ray = SimpleNamespace(__file__=str(script.with_name("__init__.py")), shutdown=lambda: ended.append(True))
        end_attempt(ray, before)
        assert left.poll() is not None and ended == [True]
        assert earlier.poll() is None and ours.poll() is None
    finally:
        for process in (earlier, left, ours):
            process.kill()
            process.wait()
