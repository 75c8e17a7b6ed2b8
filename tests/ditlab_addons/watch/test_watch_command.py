"""`ditlab watch`: its mistakes, and how long it serves."""

import json
import signal
import urllib.request

import pytest

from ditlab.spec.yaml_text import dump_yaml
from support.command import start_process
from support.journaled import JournaledRun, finished_run


def test_mistakes_are_one_sentence(home, ditlab, tmp_path):
    folder = finished_run(home)
    (tmp_path / "spec.yaml").write_text(dump_yaml({"name": "x"}))
    JournaledRun(home, name="sweep", trials=2)
    for arguments, expected in (
        (("nope",), "is watched there: ssh -t -L 8080:127.0.0.1:8080"),
        ((folder.run_id, "--port", "99999"), "99999"),
        (("sweep",), "is a sweep; name one of its trials"),
        ((tmp_path / "spec.yaml",), "is no graph of steps"),
    ):
        ditlab("watch", *arguments).refused(expected)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_file", [False, True])
def test_watch_serves_until_it_is_interrupted(home, tmp_path, end, is_file):
    graph = tmp_path / "study.yaml"
    graph.write_text("name: study\nsteps: {digits: {import: digits}}\n")
    shown = graph if is_file else finished_run(home).run_id
    process = start_process("watch", shown, "--port", "0", "--json", home=home)
    try:
        told = json.loads(process.stdout.readline())
        assert told["run_id"] == (None if is_file else shown) and told["pid"] == process.pid
        with urllib.request.urlopen(told["url"], timeout=20) as answer:
            assert b"data-update" in answer.read()
        process.send_signal(end)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait(20)
    assert said.endswith("ended.\n") and "Traceback" not in said
