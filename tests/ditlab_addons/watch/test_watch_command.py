"""`ditlab watch`: its mistakes, and how long it serves."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from support.journaled import JournaledRun, finished_run


def test_mistakes_are_one_sentence(home, ditlab):
    folder = finished_run(home)
    JournaledRun(home, name="sweep", trials=2)
    for arguments, expected in (
        (("nope",), "is watched there: ssh -t -L 8080:127.0.0.1:8080"),
        ((folder.run_id, "--port", "99999"), "99999"),
        (("sweep",), "is a sweep; name one of its trials"),
    ):
        ditlab("watch", *arguments).refused(expected)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_serves_until_it_is_interrupted(home, tmp_path, end):
    folder = finished_run(home)
    command = [sys.executable, "-m", "ditlab", "watch", folder.run_id, "--port", "0", "--json"]
    environment = {**os.environ, "DITLAB_HOME": str(home)}
    with Path(tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
        )
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["run_id"] == folder.run_id and told["pid"] == process.pid
        with urllib.request.urlopen(told["url"], timeout=20) as answer:
            assert b"data-update" in answer.read()
        process.send_signal(end)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait(20)
    said = (tmp_path / "errors").read_text()
    assert said.endswith("ended.\n") and "Traceback" not in said
