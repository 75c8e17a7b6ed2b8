"""Local worker processes: results, errors of their own type, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import distributed

from ditlab.errors import RunFailed, UserError
from ditlab_addons.check import process_group
from ditlab_addons.check.process_group import report_done, run_workers
from support.damage import refused
from support.trainings.groups import warm_processes


class Untravelled(Exception):
    """An error that cannot be made again from its arguments."""

    def __init__(self, first, second):
        super().__init__(first)


def add_up(rank, values):
    total = torch.tensor(values) * (rank.rank + 1)
    distributed.all_reduce(total)
    report_done(rank.rank + 1)
    return rank.rank, float(total.sum()), torch.get_num_threads()


def fail(rank, kind, folder):
    Path(folder, str(os.getpid())).touch()
    if rank.rank == 0:
        while len(pids(Path(folder))) < rank.world_size:
            time.sleep(0.01)
        if kind == "user":
            raise UserError("batch.size=7 is odd; set an even one.")
        if kind == "run":
            raise RunFailed("it diverged.", kind="diverged")
        if kind == "untravelled":
            raise Untravelled("one", "two")
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()


def wait_for_ever(rank, folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids(folder):
    return [int(path.name) for path in folder.iterdir()]


def assert_all_end(folder):
    deadline = time.monotonic() + 20
    while any(map(is_running, pids(folder))):
        assert time.monotonic() < deadline, "a worker process is left"
        time.sleep(0.05)


@pytest.fixture
def warm(monkeypatch):
    monkeypatch.setattr(process_group, "_context", warm_processes)


def test_results_and_errors_of_workers(warm, tmp_path):
    values = np.arange(3.0)
    done = []
    assert run_workers(add_up, (values,), 2, threads=1, on_done=done.append) == [
        (0, 9.0, 1),
        (1, 9.0, 1),
    ]
    assert sorted(done) == [1, 2]
    with pytest.raises(UserError, match=r"batch\.size=7") as raised:
        run_workers(fail, ("user", str(tmp_path)), 2)
    assert "in fail" in raised.value.__notes__[0]
    assert_all_end(tmp_path)


def test_a_killed_worker_is_named(warm, tmp_path):
    with refused("worker process 0 was killed by signal 9; memory may have run out", RunFailed):
        run_workers(fail, ("killed", str(tmp_path)), 2)
    assert_all_end(tmp_path)


@pytest.mark.slow
def test_spawned_workers_and_every_kind_of_error(tmp_path):
    assert [result[:2] for result in run_workers(add_up, (np.arange(3.0),), 2)] == [
        (0, 9.0),
        (1, 9.0),
    ]
    (single,) = run_workers(add_up, (np.arange(3.0),), 1)
    assert single[:2] == (0, 3.0)
    with pytest.raises(RunFailed, match="it diverged") as failed:
        run_workers(fail, ("run", str(tmp_path)), 2)
    assert failed.value.kind == "diverged"
    (tmp_path / "more").mkdir()
    with pytest.raises(RuntimeError, match="Untravelled: one"):
        run_workers(fail, ("untravelled", str(tmp_path / "more")), 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_process_that_began_it(number, tmp_path):
    code = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from test_process_group import wait_for_ever\n"
        "from ditlab_addons.check.process_group import run_workers\n"
        f"run_workers(wait_for_ever, ({str(tmp_path)!r},), 2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    deadline = time.monotonic() + 120
    while len(pids(tmp_path)) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(30)
    assert_all_end(tmp_path)
