"""Threads of a run's workers: what limits them, and that later attempts keep their number."""

import os

import pytest

from ditlab.api.training import train
from ditlab.home import Home
from ditlab.receipts.reading import read_attempts
from ditlab.runs.cores import allowed_cores, worker_threads
from ditlab.spec.resources import Resources
from support.trainings.workers import tiny


@pytest.fixture
def machine(monkeypatch):
    """A machine of eight cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def test_what_limits_the_threads(machine, monkeypatch, tmp_path):
    assert worker_threads(Resources()) == (8, "") and worker_threads(Resources(workers=3)).number == 2
    assert worker_threads(Resources(cpus_per_worker=8)) == (8, "") and worker_threads(Resources(), 7) == (7, "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert worker_threads(Resources()) == (3, "OMP_NUM_THREADS=3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5})
    assert worker_threads(Resources()).number == 2 and allowed_cores() == (2, "the affinity mask")
    number, reason = worker_threads(Resources(), 7)
    assert number == 7 and "its sums depend on their number, though the affinity mask allows 2 of 8 cores" in reason


@pytest.mark.parametrize(
    ("text", "found"), [("300000 100000\n", 3), ("max 100000\n", 8), ("50000 100000\n", 1), ("nonsense", 8)]
)
def test_a_control_group_limits_the_cores(machine, tmp_path, text, found):
    (tmp_path / "cpu.max").write_text(text)
    assert allowed_cores(tmp_path / "cpu.max")[0] == found


def test_a_resumed_run_keeps_its_threads(home, monkeypatch):
    home = Home(home)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    first = train(tiny(training__steps=3, tracking__uri="http://127.0.0.1:9"), local=True, warn=print)
    assert [each.threads for each in read_attempts(home.run(first.run_id)).values()] == [2]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = []
    longer = tiny(training__steps=5, tracking__uri="http://127.0.0.1:9")
    train(longer, local=True, resume=first.run_id, warn=print, say=said.append)
    assert [each.threads for each in read_attempts(home.run(first.run_id)).values()] == [2, 2]
    assert "1 CPU worker with 2 threads" in said[0]
