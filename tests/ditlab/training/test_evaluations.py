"""Evaluations beside the training, and the early stop that follows from evaluations, inline and beside."""

import math
import shutil
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from ditlab.engine.distributed import single_process
from ditlab.runs.evaluator import evaluate_checkpoint
from ditlab.spec.optimization import EarlyStop
from ditlab.training import evaluations
from ditlab.training.early_stop import STOP_TAG, decision_of, recorded_stop
from ditlab.training.evaluation import Protocol
from ditlab.training.evaluations import PASSED_TAG, TAKEN_TAG
from ditlab.training.hooks import StepHook
from ditlab.training.mailbox import EvaluationAnswer, EvaluationMailbox
from ditlab.training.reporting import RecordedRun
from ditlab.training.trainer import train
from support.trainings.workers import Recorder, newest, same_state, tiny, training_run

METRIC = "eval/velocity"


class Journal(Recorder):
    """A recorder that knows what earlier attempts recorded, and refuses a point that is there already."""

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
        return sorted([*((step, each[metric]) for step, each in values if metric in each), *self._points])


def beside(**changes):
    fixed = {
        "training__steps": 12, "checkpoint": {"every": 100, "keep": 1},
        "evaluation": {"every": 3, "samples": 0, "limit": 16, "where": "beside"},
    }  # fmt: skip
    return tiny(**{**fixed, **changes})


@contextmanager
def evaluator(mailbox, value=float, is_ready=lambda step: True):
    """EvaluationAnswer requests with `value` of their step, once it is ready."""
    over = threading.Event()

    def serve():
        while not over.wait(0.01):
            request = mailbox.request()
            if request and not mailbox.has_answer(request.step) and is_ready(request.step):
                mailbox.answer(EvaluationAnswer(request.step, {METRIC: value(request.step)}))

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    over.set()
    thread.join()


def run_beside(experiment, folder, journal, hooks=(), **changes):
    """Train with the mailbox of `folder`, from its newest checkpoint on."""
    run = training_run(experiment, folder, folder / "checkpoints")
    run = replace(run, mailbox=EvaluationMailbox(folder / "beside"), **changes)
    with single_process(False) as rank:
        return train(run, rank, journal, hooks)


@pytest.mark.parametrize(
    ("changes", "values", "steps"),
    [
        ({}, [3, 2, 2.5, 2], 4),
        ({}, [3, 2, 2.5, 1.9, 1.8], None),
        ({"min_delta": 0.5}, [3, 2, 1.6, 1.7], 4),
        ({"mode": "max"}, [0.1, 0.2, 0.2, 0.1], 4),
        ({}, [3, math.nan, math.nan], 3),
        ({}, [math.nan, 3, 2, 1], None),
        ({}, [math.nan, math.nan, math.nan], 2),
    ],
)
def test_decision(changes, values, steps):
    spec = EarlyStop(metric="m", patience=2, **changes)
    ends = [n for n in range(1, len(values) + 1) if decision_of(spec, list(enumerate(values[:n]))).holds()]
    assert ends[:1] == ([steps] if steps else [])


def test_no_step_waits_for_a_slow_evaluator(tmp_path):
    """Nothing is answered before the last step is done; the checkpoint that waits is kept, the others pass."""
    journal, mailbox = Journal(), EvaluationMailbox(tmp_path / "beside")
    waiting = []

    class Kept(StepHook):
        def saved(self, step, location, metrics):
            waiting.append((step, mailbox.request().step, sorted((tmp_path / "checkpoints").glob("step-*"))))

    with evaluator(mailbox, is_ready=lambda step: step == 12):
        outcome = run_beside(beside(), tmp_path, journal, [Kept()])
    assert outcome.status == "finished" and outcome.metrics[METRIC] == 12.0
    assert len(journal.losses) == 12 and journal.evaluated_steps() == [12]
    assert [step for step, _, _ in waiting] == [0, 3, 6, 9, 12]
    for step, asked, folders in waiting:  # keep=1, the one that was asked for before, the next
        assert asked == step and len(folders) <= 3
    assert journal.tagged[PASSED_TAG] == "0, 3, 6, 9" and journal.tagged[TAKEN_TAG] == "12"
    assert any("steps 0, 3, 6, 9 passed over" in each for each in journal.warnings)
    assert mailbox.request() is None and mailbox.answers() == []


def test_an_interrupted_run_goes_on_with_what_is_due(tmp_path):
    """An answer that came while nobody trained is taken in once; a request that stands is answered after the resume."""
    journal, mailbox = Journal(), EvaluationMailbox(tmp_path / "beside")
    journal.stop_after = 7
    assert run_beside(beside(), tmp_path, journal).status == "interrupted"
    assert mailbox.request().step == 6 and journal.evaluated_steps() == []
    mailbox.answer(EvaluationAnswer(6, {METRIC: 6.0}))
    journal.stop_after = None
    with evaluator(mailbox):
        assert run_beside(beside(), tmp_path, journal).status == "finished"
    assert journal.evaluated_steps()[0] == 6 and journal.evaluated_steps()[-1] == 12
    torn = Journal(tagged=dict(journal.tagged), values=journal.values)  # killed between journal and mailbox
    mailbox.answer(EvaluationAnswer(12, {METRIC: 12.0}))
    assert run_beside(beside(), tmp_path, torn).status == "finished" and mailbox.answers() == []


def test_scheduler_gets_each_value_at_its_step(tmp_path):
    seen = []

    class Scheduler(StepHook):
        def evaluated(self, step, metrics):
            seen.append((step, metrics[METRIC]))
            return False

    mailbox = EvaluationMailbox(tmp_path / "beside")
    with evaluator(mailbox):
        run_beside(beside(), tmp_path, Journal(), [Scheduler()], waits_for_values=True)
    assert seen == [(3, 3.0), (6, 6.0), (9, 9.0)]


def test_failed_evaluation_costs_no_training(tmp_path):
    journal, mailbox = Journal(), EvaluationMailbox(tmp_path / "beside")
    mailbox.answer(EvaluationAnswer(12, error="no memory"))  # is dropped: nobody asked for it yet
    over = threading.Event()

    def refuse():
        while not over.wait(0.01):
            if (request := mailbox.request()) and not mailbox.has_answer(request.step):
                mailbox.answer(EvaluationAnswer(request.step, error="no memory"))

    thread = threading.Thread(target=refuse)
    thread.start()
    outcome = run_beside(beside(), tmp_path, journal)
    over.set()
    thread.join()
    assert outcome.status == "finished" and journal.evaluated_steps() == []
    assert any("step 12 was not evaluated (no memory)" in each for each in journal.warnings)


@pytest.mark.parametrize("where", ["inline", "beside"])
def test_stop_is_repeated_after_a_resume(where, tmp_path, monkeypatch):
    """Values get worse from step 3 on: the run ends as finished, and from an earlier checkpoint at the same step."""
    stop = {"metric": METRIC, "patience": 2, "mode": "max"}  # the loss falls
    evaluation = {"every": 3, "samples": 0, "limit": 16, "where": where}
    experiment = beside(
        training__steps=60, training__stop=stop, evaluation=evaluation, checkpoint={"every": 2, "keep": 50}
    )
    journal, mailbox = Journal(), EvaluationMailbox(tmp_path / "beside")
    box = {"mailbox": mailbox} if where == "beside" else {"mailbox": None}
    with evaluator(mailbox, lambda step: -float(step)):
        outcome = run_plain(experiment, tmp_path, journal, box)
    end = recorded_stop(journal.tagged)
    assert outcome.status == "finished" and outcome.step == end == max(journal.losses) < 60
    if where == "inline":
        assert end == 6 and journal.evaluated_steps() == [0, 3, 6]
    assert journal.evaluated_steps()[-1] == end  # the final checkpoint is evaluated
    whole = newest(tmp_path / "checkpoints")
    for each in (tmp_path / "checkpoints").glob("step-*"):
        if int(each.name.removeprefix("step-")) > 4:
            each.rename(tmp_path / each.name)
    if where == "inline":  # points between evaluations were asked for, and count for nothing
        asked, folder = Recorder(), tmp_path / "asked"
        asked.recorded = Known(journal, [(1, -99.0), (2, -99.0)], knows_tags=False)
        shutil.copytree(tmp_path / "checkpoints", folder / "checkpoints")
        assert run_plain(experiment, folder, asked, box).step == end
    again = Recorder(tagged=journal.tagged)
    again.recorded = Known(journal)
    monkeypatch.setattr(evaluations, "LOOK_INTERVAL", 0.0)  # values come sooner than before, and change nothing
    with evaluator(mailbox, lambda step: -float(step)):
        second = run_plain(experiment, tmp_path, again, box)
    assert (second.status, second.step) == ("finished", end)
    assert same_state(newest(tmp_path / "checkpoints"), newest(tmp_path)) and whole.manifest.step == end
    free = experiment.replace("training.stop", None)
    assert free.content_hash() == experiment.content_hash()
    assert run_plain(free.replace("training.steps", end + 1), tmp_path, again, {"mailbox": None}).step == end + 1
    assert journal.tagged[STOP_TAG] == ""


def run_plain(experiment, folder, reporter, changes):
    run = replace(training_run(experiment, folder, folder / "checkpoints"), **changes)
    with single_process(False) as rank:
        return train(run, rank, reporter)


def test_checkpoint_gives_the_bits_of_the_workers(tmp_path):
    journal = Journal()
    experiment = beside(evaluation={"every": 6, "samples": 4, "limit": 64}, training__steps=6, sampling={"steps": 2})
    run_plain(experiment, tmp_path, journal, {})
    run = training_run(experiment, tmp_path, tmp_path / "checkpoints")
    with run.checkpoints.held(6, "evaluation") as reader:
        assert run.checkpoints.held_digest(6, "evaluation")
        found = evaluate_checkpoint(run, reader, torch.device("cpu"), Protocol(16, 1, "cpu", 1), journal.warn)
    assert found.values == {name: each for name, each in journal.values[6].items() if name.startswith("eval/")}
    assert found.grid is not None and not run.checkpoints.held_digest(6, "evaluation")
