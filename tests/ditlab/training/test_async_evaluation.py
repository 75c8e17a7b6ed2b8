"""Asynchronous evaluation, and the early stop that follows from evaluations, inline and
asynchronous.
"""

import math
import shutil
import threading
from contextlib import contextmanager

import pytest
import torch

from ditlab.runs.evaluator_process import evaluate_checkpoint
from ditlab.spec.optimization import EarlyStop
from ditlab.training import async_evaluation
from ditlab.training.async_evaluation import SKIPPED_EVALUATIONS_TAG, TAKEN_TAG
from ditlab.training.early_stop import STOP_TAG, StopDecision, recorded_stop
from ditlab.training.evaluation import Protocol
from ditlab.training.hooks import StepHook
from ditlab.training.inbox import EVALUATE, EvaluationAnswer, Inbox, Request
from ditlab.training.reporting import RecordedRun
from support.trainings.workers import Recorder, newest, same_state, tiny, train_here, training_run

METRIC = "eval/velocity"


class Journal(Recorder):
    """A recorder that knows what earlier attempts recorded, and refuses a point that is there
    already.
    """

    def metrics(self, step, values):
        for name in values:
            if name.startswith("eval/"):
                assert name not in self.values.get(step, {}), f"{name} of step {step} twice"
        super().metrics(step, values)

    @property
    def recorded(self):
        return Known(self)

    def evaluated_steps(self):
        return [step for step, _ in self.recorded.history(METRIC)]


class Known(RecordedRun):
    """View of a recorder's points and tags, with further points of every metric."""

    def __init__(self, recorder, points=(), knows_tags=True):
        self._recorder, self._points, self._knows_tags = recorder, points, knows_tags

    def tags(self):
        return self._recorder.tagged if self._knows_tags else {}

    def history(self, metric):
        values = self._recorder.values.items()
        own = [(step, each[metric]) for step, each in values if metric in each]
        return sorted([*own, *self._points])


def asynchronous(**changes):
    fixed = {
        "training__steps": 12,
        "checkpoint": {"every": 100, "keep": 1},
        "evaluation": {"every": 3, "samples": 0, "limit": 16, "mode": "async"},
    }
    return tiny(**{**fixed, **changes})


def answer(inbox, step, **fields):
    inbox.answer(Request(step, EVALUATE), EvaluationAnswer(step, **fields))


def answer_too_late(inbox, step, **fields):
    """Leave an answer whose request is gone, as an evaluator of an attempt that was rolled back
    does.
    """
    inbox.post(Request(step, EVALUATE))
    answer(inbox, step, **fields)
    (inbox.folder / f"{step:08d}-evaluate.json").unlink()


@contextmanager
def evaluator(inbox, value=float, is_ready=lambda step: True, error=""):
    """Answer requests with `value` of their step, or an error, once the step is ready."""
    over = threading.Event()

    def serve():
        while not over.wait(0.01):
            request = inbox.newest()
            if request and is_ready(request.number):
                metrics = {} if error else {METRIC: value(request.number)}
                answer(inbox, request.number, metrics=metrics, error=error)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()


def run_async(experiment, folder, journal, hooks=(), **changes):
    """Train with the inbox of `folder`, from its newest checkpoint on."""
    changes = {"inbox": Inbox(folder / "evaluator"), **changes}
    place = folder / "checkpoints"
    return train_here(experiment, folder, place, recorder=journal, hooks=hooks, **changes)[0]


@pytest.fixture
def inbox(tmp_path):
    """The inbox that `run_async` trains with in this folder."""
    return Inbox(tmp_path / "evaluator")


@pytest.mark.parametrize(
    ("changes", "values", "steps"),
    [
        ({}, [3, 2, 2.5, 2], 4),
        ({}, [3, 2, 2.5, 1.9, 1.8], None),
        ({"min_delta": 0.5}, [3, 2, 1.6, 1.7], 4),
        ({"mode": "max"}, [0.1, 0.2, 0.2, 0.1], 4),
        ({}, [3, math.nan, math.nan], 3),
        ({}, [math.nan, 3, 2, 1], None),
    ],
)
def test_decision(changes, values, steps):
    decision = StopDecision(EarlyStop(metric="m", patience=2, **changes))
    ends = None
    for step, value in enumerate(values):
        decision.add(step, {"m": value})
        if decision.holds() and ends is None:
            ends = step + 1
    assert ends == steps


def test_no_step_waits_for_a_slow_evaluator(tmp_path, inbox):
    """Nothing is answered before the last step is done; the checkpoint that waits is kept, the
    others pass.
    """
    journal = Journal()
    waiting = []

    class Kept(StepHook):
        def saved(self, step, location, metrics):
            # keep=1, the one that was asked for before, the next
            assert len(list((tmp_path / "checkpoints").glob("step-*"))) <= 3
            waiting.append((step, inbox.newest().number))

    with evaluator(inbox, is_ready=lambda step: step == 12):
        outcome = run_async(asynchronous(), tmp_path, journal, [Kept()])
    assert outcome.status == "finished" and outcome.metrics[METRIC] == 12.0
    assert len(journal.losses) == 12 and journal.evaluated_steps() == [12]
    assert waiting == [(step, step) for step in (0, 3, 6, 9, 12)]
    assert journal.tagged[SKIPPED_EVALUATIONS_TAG] == "0, 3, 6, 9"
    assert journal.tagged[TAKEN_TAG] == "12"
    assert any("steps 0, 3, 6, 9 skipped" in each for each in journal.warnings)
    assert inbox.listed() == {}


def test_an_interrupted_run_goes_on_with_what_is_due(tmp_path, inbox):
    """An answer that came while nobody trained is taken in once; a request that stands is answered
    after the resume.
    """
    journal = Journal()
    journal.stop_after = 7
    assert run_async(asynchronous(), tmp_path, journal).status == "interrupted"
    assert inbox.newest().number == 6 and journal.evaluated_steps() == []
    answer(inbox, 6, metrics={METRIC: 6.0})
    journal.stop_after = None
    with evaluator(inbox):
        assert run_async(asynchronous(), tmp_path, journal).status == "finished"
    assert journal.evaluated_steps()[0] == 6 and journal.evaluated_steps()[-1] == 12
    # killed between journal and inbox
    torn = Journal(tagged=dict(journal.tagged), values=journal.values)
    inbox.post(Request(12, EVALUATE))
    answer(inbox, 12, metrics={METRIC: 12.0})
    assert run_async(asynchronous(), tmp_path, torn).status == "finished" and inbox.listed() == {}


def test_scheduler_gets_each_value_at_its_step(tmp_path, inbox):
    seen = []

    class Scheduler(StepHook):
        def evaluated(self, step, metrics):
            seen.append((step, metrics[METRIC]))
            return False

    # neither hinders the evaluator nor is taken in
    answer_too_late(inbox, 9, metrics={METRIC: -1.0})
    with evaluator(inbox):
        run_async(asynchronous(), tmp_path, Journal(), [Scheduler()], waits_for_values=True)
    assert seen == [(3, 3.0), (6, 6.0), (9, 9.0)]


def test_failed_evaluation_costs_no_training(tmp_path, inbox):
    journal = Journal()
    answer_too_late(inbox, 12, error="of an earlier attempt")
    with evaluator(inbox, error="no memory"):
        outcome = run_async(asynchronous(), tmp_path, journal)
    assert outcome.status == "finished" and journal.evaluated_steps() == []
    assert any("step 12 was not evaluated (no memory)" in each for each in journal.warnings)


@pytest.mark.parametrize("mode", ["inline", "async"])
def test_stop_is_repeated_after_a_resume(mode, tmp_path, inbox, monkeypatch):
    """Values get worse from step 3 on: the run ends as finished, and from an earlier checkpoint at
    the same step.
    """
    experiment = asynchronous(
        training__steps=60,
        training__stop={"metric": METRIC, "patience": 2, "mode": "max"},  # the loss falls
        evaluation={"every": 3, "samples": 0, "limit": 16, "mode": mode},
        checkpoint={"every": 2, "keep": 50},
    )
    journal = Journal()
    box = {"inbox": inbox if mode == "async" else None}
    with evaluator(inbox, lambda step: -float(step)):
        outcome = run_async(experiment, tmp_path, journal, **box)
    end = recorded_stop(journal.tagged)
    assert outcome.status == "finished" and outcome.step == end == max(journal.losses) < 60
    if mode == "inline":
        assert end == 6 and journal.evaluated_steps() == [0, 3, 6]
    assert journal.evaluated_steps()[-1] == end  # the final checkpoint is evaluated
    whole = newest(tmp_path / "checkpoints")
    for each in (tmp_path / "checkpoints").glob("step-*"):
        if int(each.name.removeprefix("step-")) > 4:
            each.rename(tmp_path / each.name)
    if mode == "inline":  # points between evaluations were asked for, and count for nothing
        asked, folder = Recorder(), tmp_path / "asked"
        asked.recorded = Known(journal, [(1, -99.0), (2, -99.0)], knows_tags=False)
        shutil.copytree(tmp_path / "checkpoints", folder / "checkpoints")
        assert run_async(experiment, folder, asked, **box).step == end
    again = Recorder(tagged=journal.tagged)
    again.recorded = Known(journal)
    # values come sooner than before, and change nothing
    monkeypatch.setattr(async_evaluation, "LOOK_INTERVAL", 0.0)
    with evaluator(inbox, lambda step: -float(step)):
        second = run_async(experiment, tmp_path, again, **box)
    assert (second.status, second.step) == ("finished", end)
    assert same_state(newest(tmp_path / "checkpoints"), newest(tmp_path))
    assert whole.manifest.step == end
    free = experiment.replace("training.stop", None)
    assert free.content_hash() == experiment.content_hash()
    free = free.replace("training.steps", end + 1)
    assert run_async(free, tmp_path, again, inbox=None).step == end + 1
    assert journal.tagged[STOP_TAG] == ""


def test_checkpoint_gives_the_bits_of_the_workers(tmp_path):
    journal = Journal()
    experiment = asynchronous(
        evaluation={"every": 6, "samples": 4, "limit": 64}, training__steps=6, sampling={"steps": 2}
    )
    run_async(experiment, tmp_path, journal, inbox=None)
    run = training_run(experiment, tmp_path, tmp_path / "checkpoints")
    protocol = Protocol(16, 1, "cpu", 1)
    with run.checkpoints.held(6, "evaluation") as reader:
        assert run.checkpoints.held_digest(6, "evaluation")
        found = evaluate_checkpoint(run, reader, torch.device("cpu"), protocol, journal.warn)
    values = journal.values[6].items()
    assert found.values == {name: each for name, each in values if name.startswith("eval/")}
    assert found.grid is not None and not run.checkpoints.held_digest(6, "evaluation")
