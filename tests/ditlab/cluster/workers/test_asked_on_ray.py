"""A run of two Ray workers that is asked for everything, and loses a worker meanwhile, ends in the
bits of another.
"""

import os
import signal
import threading

import pytest

from ditlab.home import Home
from ditlab.receipts.records import STOP_VERB
from ditlab.runs.requests import RequestAnswer, open_requests, post_request
from ditlab.tracking.journal import read_content
from ditlab.training.inbox import Inbox
from ditlab_addons.ask.request import ask
from support.clusters.faults import journal_path, wait_until, worker_processes
from support.clusters.unbroken import broken, checkpoint_of
from support.trainings.workers import same_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAME = "asked"


def test_each_verb_with_two_workers_and_a_kill_between_request_and_answer(at_home, go):
    changes = {
        "resources__cpus_per_worker": 1,
        "evaluation": {"every": 50_000, "samples": 2, "limit": 64},
    }
    found, faults = {}, []

    def asks():
        try:
            wait_until(lambda: journal_path(at_home, NAME) is not None, 200, "the run")
            run_id = journal_path(at_home, NAME).parent.name
            folder = Home(at_home).run(run_id)
            for verb in ("sample", "evaluate", "checkpoint"):
                found[verb] = ask(folder, verb, 200)
            request, inbox = post_request(folder, "evaluate"), Inbox(folder.requests)
            os.kill(worker_processes()[0].pid, signal.SIGKILL)
            wait_until(lambda: inbox.listed()[request], 300, "the answer")
            found["killed"] = inbox.read(request, RequestAnswer)
            found["stop"] = ask(folder, STOP_VERB, 200)
        except BaseException as error:
            faults.append(error)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=asks, daemon=True)
    thread.start()
    result = go(broken(NAME, training__steps=50_000, **changes))
    thread.join(60)
    assert not faults, faults
    folder = Home(at_home).run(result.run_id)
    assert [answer.status for answer in found.values()] == ["done"] * 5, found
    assert found["stop"].step == result.step
    assert result.status == "interrupted" and found["stop"].checkpoint.endswith(
        f"step-{result.step:08d}"
    )
    points = read_content(folder.journal).metrics["eval/velocity"]
    assert found["evaluate"].metrics["eval/velocity"] in points.values
    assert {found["evaluate"].step, result.step} <= set(points.steps)
    assert open_requests(folder) == []
    plain = go(broken("plain", training__steps=result.step, **changes))
    assert same_state(checkpoint_of(at_home, result.run_id), checkpoint_of(at_home, plain.run_id))
