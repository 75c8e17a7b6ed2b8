"""Start of a Ray instance that takes longer than Ray's own time: tried again, with words."""

import subprocess
import sys
from types import SimpleNamespace

import psutil

from ditlab.cluster.session import TRIES, end_attempt, start_with_patience
from ditlab.errors import RunFailed
from support.damage import refused

SLOW = (
    "The current node timed out during startup. This could happen because some of the raylet "
    "failed to startup."
)


class Starts:
    """Starts of which the first fail; records what happens."""

    def __init__(self, *failures):
        self.failures, self.events, self.said = list(failures), [], []

    def start(self):
        self.events.append("start")
        if self.failures:
            raise self.failures.pop(0)

    def run(self, monkeypatch):
        monkeypatch.setattr("ditlab.cluster.session._PAUSE", 0.0)
        start_with_patience(self.start, lambda: self.events.append("clean"), self.said.append)


def test_slow_start_is_tried_again(monkeypatch):
    starts = Starts(
        Exception(SLOW), RuntimeError("Failed to start GCS.  Last 0 lines of error files")
    )
    starts.run(monkeypatch)
    assert starts.events == ["start", "clean", "start", "clean", "start"]
    assert len(starts.said) == 2 and all(
        "as this machine is busy; trying again" in each for each in starts.said
    )


def test_start_that_is_slow_for_good_is_one_sentence(monkeypatch):
    starts = Starts(*[Exception(SLOW)] * 9)
    with refused("Ray cannot be started on this machine", RunFailed):
        starts.run(monkeypatch)
    assert starts.events == ["start", "clean"] * TRIES


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
        ray = SimpleNamespace(
            __file__=str(script.with_name("__init__.py")), shutdown=lambda: ended.append(True)
        )
        end_attempt(ray, before)
        assert left.poll() is not None and ended == [True]
        assert earlier.poll() is None and ours.poll() is None
    finally:
        for process in (earlier, left, ours):
            process.kill()
            process.wait()
