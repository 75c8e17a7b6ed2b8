"""Workers that are killed or stop answering: the run goes on by itself and ends in the same
bits.
"""

import random
import signal
import threading
import time

import pytest

from ditlab.errors import RunFailed
from ditlab.home import Home
from ditlab.tracking.records import read_record
from support.clusters.faults import (
    kill_worker,
    once_at,
    processes_with,
    tracked,
    wait_until,
    worker_processes,
)
from support.clusters.unbroken import STEPS, broken, checkpoint_of
from support.trainings.workers import same_state


def tags_of_equal(result, home, unbroken, name):
    """Tags of a run that has ended with the points and bits of the unbroken one."""
    points, tags, status = tracked(home, name)
    assert points == unbroken.points and status == "FINISHED"
    assert same_state(checkpoint_of(home, result.run_id), unbroken.state)
    return tags


def trial(go, home, unbroken, name, seed):
    """kill -9 of a random worker at a random step."""
    draw = random.Random(seed)
    step, worker = draw.randrange(1, STEPS - 15), draw.randrange(2)
    with once_at(home, name, step, kill_worker(worker)):
        result = go(broken(name))
    assert (result.status, result.step) == ("finished", STEPS)
    tags = tags_of_equal(result, home, unbroken, name)
    assert (tags["ditlab.failure"], tags["ditlab.failures"]) == ("lost_worker", "1")


@pytest.mark.slow  # `test_worker_group.py` has one of them in every run
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(1, 21))
def test_many_more_killed_workers(go, home, unbroken, seed):
    trial(go, home, unbroken, f"killed-{seed}", seed)


@pytest.mark.slow
def test_a_worker_that_stops_answering_is_named_and_replaced(go, home, unbroken, capfd):
    name = "stopped"
    with once_at(home, name, 30, kill_worker(1, signal.SIGSTOP)):
        result = go(broken(name, resources={"workers": 2, "hang_timeout": 8}))
    assert result.status == "finished"
    tags = tags_of_equal(result, home, unbroken, name)
    assert (
        tags["ditlab.failure"] == "hung_worker"
        and "gave no sign of progress" in tags["ditlab.failure_message"]
    )
    assert "hung worker: worker" in capfd.readouterr().err
    assert worker_processes() == []


@pytest.mark.slow
def test_losses_without_progress_end_the_run_with_the_failures_name(go, home):
    name = "hopeless"
    hopeless = broken(name, checkpoint={"every": None}, resources={"workers": 2, "max_failures": 0})
    said = r"lost worker: worker \d .* died"
    with once_at(home, name, 10, kill_worker(0)), pytest.raises(RunFailed, match=said) as e:
        go(hopeless)
    assert e.value.exit_code == 1 and e.value.kind == "lost_worker"
    _, tags, status = tracked(home, name)
    assert (status, tags["ditlab.failure"]) == ("FAILED", "lost_worker")
    (record,) = [
        read_record(run)
        for run in map(Home(home).run, [p.name for p in Home(home).runs.iterdir()])
        if read_record(run).name == name
    ]
    assert record.status == "failed" and "lost worker" in record.message


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("delay", [0.0, 1.5])
def test_a_worker_that_dies_while_it_is_started_is_a_loss_too(go, home, unbroken, delay):
    """It has given no sign of life yet, and kept no journal."""

    def kill():
        wait_until(lambda: bool(worker_processes()), 120, "a worker")
        time.sleep(delay)
        worker_processes()[0].kill()

    name = f"started-{delay:.0f}"
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    result = go(broken(name))
    killer.join(5)
    tags = tags_of_equal(result, home, unbroken, name)
    assert tags["ditlab.failure"] == "lost_worker"


@pytest.mark.slow
def test_the_process_that_leads_the_workers_may_die(go, home, unbroken):
    name = "led"
    with once_at(home, name, 30, lambda: processes_with("TrainController")[0].kill()):
        result = go(broken(name))
    tags = tags_of_equal(result, home, unbroken, name)
    assert "the process that leads the workers died" in tags["ditlab.failure_message"]
