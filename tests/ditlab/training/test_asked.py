"""A run that trains does what it is asked for at the end of a step; no bit of the weights
changes.
"""

import pytest
import torch

from ditlab.checkpoints.store import CheckpointStore
from ditlab.home import RunFolder
from ditlab.receipts.reading import read_receipts
from ditlab.receipts.records import STOP_VERB, VERBS
from ditlab.receipts.writer import ReceiptWriter
from ditlab.training.hooks import StepHook
from ditlab.training.inbox import Request
from ditlab.training.reporting import Requests
from support.planted.faulty_losses import faulty, poison
from support.trainings.timings import TIMINGS
from support.trainings.workers import Recorder, same_state, tiny, train_here


class Asked(Requests):
    """Requests by the step at whose end they are found."""

    def __init__(self, verbs, marker):
        self._verbs, self._marker = verbs, marker
        self.answers = []
        self.grids = []

    def next(self):
        verb = self._verbs.get(self._marker.step + 1)  # the marker has the steps before this one
        return Request(len(self.answers) + 1, verb) if verb else None

    def begin(self, request, step):
        self.answers.append((*request, step))

    def begun(self):
        return [each for each in self.answers if each[1] in VERBS]

    def sampled(self, step, figure):
        self.grids.append(step)

    def done(self, step, metrics, problem=""):
        self.answers.append((step, sorted(metrics), problem))


class Scheduler(StepHook):
    def __init__(self):
        self.steps = []

    def evaluated(self, step, metrics):
        self.steps.append((step, metrics["eval/velocity"]))
        return False


@pytest.fixture(scope="module")
def trained(home, tmp_path_factory):
    """`trained(requests)`: a run of six steps that is asked at some of them."""

    def run(requests, **changes):
        experiment = tiny(
            evaluation__every=4,
            evaluation__samples=2,
            evaluation__limit=32,
            sampling__steps=2,
            **changes,
        )
        folder = tmp_path_factory.mktemp("run")
        recorder = Recorder()
        hook = Scheduler()
        recorder.requests = Asked(requests, recorder.marker)
        recorder.receipts = ReceiptWriter(RunFolder(folder), print)
        torch.manual_seed(7)
        place = folder / "saved"
        outcome, _ = train_here(experiment, home, place, recorder=recorder, hooks=[hook])
        recorder.receipts.close()
        return (
            outcome,
            recorder,
            hook,
            CheckpointStore.at(place),
            read_receipts(RunFolder(folder)),
            torch.get_rng_state(),
        )

    return run


@pytest.fixture(scope="module")
def plain(trained):
    return trained({})


def test_the_weights_are_those_of_a_run_that_was_not_asked(trained, plain):
    outcome, recorder, hook, store, receipts, state = trained(
        {1: "sample", 2: "evaluate", 4: "evaluate", 5: "checkpoint"}
    )
    assert store.steps() == [3, 5, 6] and plain[3].steps() == [3, 6]
    with store.open(6) as one, plain[3].open(6) as two:
        assert same_state(one, two)
        others = one.manifest.metrics.keys() ^ two.manifest.metrics.keys()
        assert all(name.startswith(TIMINGS) for name in others)  # logged once a second
    # nor do they draw from anything that training might draw from
    assert torch.equal(state, plain[5])
    for name in ("step", "samples", "loss", "norm", "lr"):
        assert (receipts.rows[name] == plain[4].rows[name]).all(), name
    asked = [VERBS[place - 1] if place else "" for place in receipts.rows["asked"]]
    assert asked == ["sample", "evaluate", "", "evaluate", "checkpoint", ""]
    evaluated = sorted(name for name in plain[0].metrics if name.startswith("eval/"))
    assert recorder.requests.answers == [
        (1, "sample", 1),
        (1, [], ""),
        (3, "evaluate", 2),
        (2, evaluated, ""),
        (5, "evaluate", 4),
        (4, evaluated, ""),
        (7, "checkpoint", 5),
        (5, [], ""),
    ]
    assert recorder.requests.grids == [1] and recorder.pictures == [0, 2, 4, 6]
    assert plain[1].pictures == [0, 4, 6]
    # The scheduler hears of evaluations that are due alone, and of their values.
    assert hook.steps == plain[2].steps and [step for step, _ in hook.steps] == [4]
    assert outcome.metrics["eval/velocity"] == plain[0].metrics["eval/velocity"]
    assert not outcome.is_asked


@pytest.mark.slow
def test_parameters_that_are_partitioned(trained):
    verbs = {1: "sample", 2: "evaluate", 5: "checkpoint"}
    expected, asked = (trained(each, engine__zero__stage=3) for each in ({}, verbs))
    assert asked[3].steps() == [3, 5, 6] and asked[1].requests.grids == [1]
    assert len(asked[1].requests.answers) == 6
    with expected[3].open(6) as one, asked[3].open(6) as two:
        assert same_state(one, two)


def test_a_run_that_is_asked_to_stop_evaluates_saves_and_ends_resumably(trained):
    outcome, _, hook, store, _, _ = trained({2: STOP_VERB})
    assert (outcome.status, outcome.step, outcome.is_asked) == ("interrupted", 2, True)
    assert store.steps() == [2] and "eval/velocity" in outcome.metrics and hook.steps == []
    with store.open(2) as saved:
        assert saved.manifest.metrics["eval/velocity"] == outcome.metrics["eval/velocity"]


def test_a_step_that_is_done_again_is_asked_again(trained, monkeypatch):
    """After a roll-back, and after lack of memory: what was found at a step that did not count is
    done once.
    """
    faults = [torch.OutOfMemoryError("CUDA out of memory")]

    def fault(step, start, batch, losses):
        if step == 1 and faults:
            raise faults.pop()
        return poison(losses) if step == 4 else losses

    faulty(monkeypatch, fault)
    changes = {"training__non_finite": {"policy": "rollback"}}
    outcome, recorder = trained({2: "sample", 5: "evaluate"}, **changes)[:2]
    assert (outcome.status, faults) == ("finished", [])
    assert any("rolled back" in text for text in recorder.warnings)
    assert recorder.requests.begun() == [(1, "sample", 2), (3, "evaluate", 5)]
