"""On Ray, two workers: the evaluator is killed five times, a worker twice, and the points are those
of an inline run.

Every point is there once, with the bits that the workers' own evaluation gives.
"""

import threading

import pytest

from support.clusters.faults import in_turn, kill_worker, processes_with, tracked
from support.clusters.unbroken import EVERY, STEPS, broken

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_killed_five_times_and_twice(go, home, unbroken):
    killed, over = set(), threading.Event()

    def kill_evaluators():
        while len(killed) < 5 and not over.wait(0.02):
            for process in processes_with("answer_on_node"):
                process.kill()
                killed.add(process.pid)

    experiment = broken(
        "asynchronous",
        evaluation={"every": EVERY, "samples": 4, "limit": 64, "mode": "async"},
        sampling={"steps": 2},
    )
    thread = threading.Thread(target=kill_evaluators)
    thread.start()
    with in_turn(home, "asynchronous", (10, kill_worker(0)), (40, kill_worker(1))):
        result = go(experiment)
    over.set()
    thread.join()
    assert (result.status, result.step) == ("finished", STEPS) and len(killed) == 5
    points, _, _ = tracked(home, "asynchronous")
    for name, expected in unbroken.points.items():
        if name.startswith("eval/"):
            found = points[name]
            assert len(found) == len(dict(found)) and found[-1][0] == STEPS, name
            assert set(found) <= set(expected), name
