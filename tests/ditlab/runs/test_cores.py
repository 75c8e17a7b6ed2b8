"""Threads of a run's workers: what limits them, and that later attempts keep their number."""

import os
import subprocess
import sys

import pytest
import torch

from ditlab.api.run import open_run
from ditlab.api.sweeps import plan_sweep
from ditlab.api.training import train
from ditlab.home import Home
from ditlab.receipts.reading import read_attempts
from ditlab.runs import cores
from ditlab.runs.cores import (
    allowed_cores,
    busy_cores,
    busy_text,
    computing_beside_others,
    sleep_at_barriers,
    worker_threads,
)
from ditlab.spec.resources import Resources
from ditlab.tracking.history import JournalFacts
from ditlab.tracking.journal import read_content
from support.sweeps import sweep_of
from support.trainings.workers import tiny


@pytest.fixture
def machine(monkeypatch):
    """A machine of eight cores, of which others keep as many busy as the returned list says."""
    busy = [0.0]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "busy_cores", lambda: busy[0])
    return busy


def test_what_limits_the_threads(machine, monkeypatch, tmp_path):
    assert worker_threads(Resources()) == (8, "")
    assert worker_threads(Resources(workers=3)).number == 2
    machine[0] = 2.6
    number, reason = worker_threads(Resources(workers=2))
    assert number == 2
    assert "other processes keep 2.6 of 8 cores busy; resources.cpus_per_worker=4" in reason
    machine[0] = 0.0
    assert worker_threads(Resources(cpus_per_worker=8)) == (8, "")
    assert worker_threads(Resources(), 7) == (7, "")
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert worker_threads(Resources()) == (3, "OMP_NUM_THREADS=3")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5})
    assert worker_threads(Resources()).number == 2 and allowed_cores() == (2, "the affinity mask")
    number, reason = worker_threads(Resources(), 7)
    limit = "its sums depend on their number, though the affinity mask allows 2 of 8 cores"
    assert number == 7 and limit in reason


def test_threads_that_outnumber_the_free_cores_sleep_while_they_wait(machine, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)
    machine[0] = 2.6
    sleep_at_barriers(5)
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    sleep_at_barriers(6)
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.delenv("GOMP_SPINCOUNT")
    sleep_at_barriers(2, workers=3)
    assert os.environ.pop("OMP_WAIT_POLICY") == "passive"
    machine[0] = 0.0
    monkeypatch.setattr(cores, "allowed_cores", lambda: (3, "the control group"))
    sleep_at_barriers(4)
    assert os.environ["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    "text, found",
    [("300000 100000\n", 3), ("max 100000\n", 8), ("50000 100000\n", 1), ("nonsense", 8)],
)
def test_a_control_group_limits_the_cores(machine, monkeypatch, tmp_path, text, found):
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    assert allowed_cores()[0] == found


def test_others_take_from_a_quota_only_where_no_core_is_free(machine, monkeypatch):
    monkeypatch.setattr(cores, "allowed_cores", lambda: (3, "the control group"))
    machine[0] = 4.4
    assert worker_threads(Resources()) == (3, "the control group allows 3 of 8 cores")
    said = []
    with computing_beside_others(said.append, needed=4):
        assert said == [
            "computing with 4 threads, as in training, though the control group allows 3 of 8 cores: it is slower"
        ]
    machine[0] = 6.2
    assert worker_threads(Resources()).number == 2


def test_a_sweep_says_why_its_workers_have_fewer_threads(machine, home, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    machine[0] = 4.0
    about, why, *_ = plan_sweep(sweep_of(trials=2, concurrent=2)).notes
    assert about.endswith("1 worker with 2 CPU threads a trial")
    assert why.startswith("threads of each worker: 2, as other processes keep 4.0 of 8 cores busy")


def test_work_in_this_process_takes_the_free_cores_and_gives_its_threads_back(machine):
    before, said = torch.get_num_threads(), []
    torch.set_num_threads(4)
    try:
        with computing_beside_others(said.append):
            assert torch.get_num_threads() == 4 and not said
        machine[0] = 6.6
        with computing_beside_others(said.append):
            machine[0] = 0.0
            with computing_beside_others(said.append):  # what is begun inside keeps the number
                assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 4
        machine[0] = 6.6
        with computing_beside_others(said.append, needed=2):
            assert torch.get_num_threads() == 4, "a protocol sets its own"
        reason = "other processes keep 6.6 of 8 cores busy"
        assert said == [
            f"computing with 1 thread, as {reason}",
            f"computing with 2 threads, as in training, though {reason}: it is slower",
        ]
    finally:
        torch.set_num_threads(before)


def test_a_time_says_that_the_machine_was_busy(machine):
    assert busy_text() == ""
    machine[0] = 2.6
    assert busy_text() == "others kept 2.6 of 8 cores busy"


def test_a_busy_process_is_counted_and_this_one_is_not():
    before = busy_cores()
    loop = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    own = subprocess.Popen([sys.executable, "-c", loop])
    try:
        assert busy_cores() < before + 0.9
    finally:
        own.kill()
        own.wait()


def test_a_resumed_run_keeps_its_threads(home, monkeypatch):
    home = Home(home)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(cores, "busy_cores", lambda: 0.0)
    before, said = torch.get_num_threads(), []

    def trained(steps, resume=None):
        spec = tiny(training__steps=steps, tracking__uri="http://127.0.0.1:9")
        return train(spec, local=True, resume=resume, warn=print, say=said.append).run_id

    first = trained(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said.clear()
    trained(5, first)
    folder = home.run(first)
    assert [each.threads for each in read_attempts(folder).values()] == [2, 2]
    assert JournalFacts.of(read_content(folder.journal)).tags["ditlab.threads"] == "2"
    assert "1 CPU worker with 2 threads" in said[0]
    assert torch.get_num_threads() == before, "the process has its own number back"

    said.clear()
    monkeypatch.setattr(cores, "busy_cores", lambda: len(os.sched_getaffinity(0)) - 1.0)
    torch.set_num_threads(2)
    try:
        run = open_run(first, warn=said.append)
        assert run.sample(1).threads == 1, "samples take the free cores"
        assert run.evaluate(rows=2).threads == 2, "an evaluation gives the bits of training"
        assert "computing with 1 thread, as other" in said[0]
        assert "with 2 threads, as in training" in said[1]
    finally:
        torch.set_num_threads(before)
