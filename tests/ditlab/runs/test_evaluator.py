"""The evaluator of a run: lost ones are started again, mistakes are one sentence, a second terminal
does as much."""

import re

import pytest

from ditlab.cluster.capacity import nodes_for_workers
from ditlab.home import Home
from ditlab.runs import evaluator_process as evaluator
from ditlab.runs.evaluator_process import async_evaluator
from ditlab.runs.launch import Launch
from ditlab.runs.prepare import check_launch
from ditlab.training.inbox import EVALUATE, EvaluationAnswer, Inbox, Request
from support.clusters.faults import wait_until
from support.damage import refused
from support.trainings.workers import TINY, tiny

ASYNC = {"every": 2, "samples": 0, "limit": 16, "mode": "async"}


@pytest.mark.parametrize("num_lost", [3, evaluator.MAX_LOST + 1])
def test_lost_evaluators(num_lost, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "POLL_INTERVAL", 0.001)
    monkeypatch.setattr(evaluator, "RETRY_PAUSE", 0.0)
    launch = Launch(tiny(evaluation=ASYNC), Home(tmp_path), "run")
    inbox, begun, warnings = Inbox(launch.folder.evaluator), [], []
    requests = [Request(step, EVALUATE) for step in (2, 4)]
    for request in requests:
        inbox.post(request)

    def evaluate(*_):
        begun.append(len(begun))
        if len(begun) <= num_lost:
            return "its node is gone"
        inbox.answer(requests[1], EvaluationAnswer(4, {"eval/velocity": float("nan")}))
        return ""

    with async_evaluator(launch, evaluate, warnings.append):
        wait_until(lambda: inbox.listed()[requests[1]], 20, "an answer")
    assert inbox.newest() is None and inbox.read(requests[0], EvaluationAnswer) is None
    answer = inbox.read(requests[1], EvaluationAnswer)
    assert len(warnings) == min(num_lost, evaluator.MAX_LOST) and "its node is gone" in warnings[0]
    assert bool(answer.error) == (num_lost > evaluator.MAX_LOST)
    assert answer.error or str(answer.metrics["eval/velocity"]) == "nan"


@pytest.mark.parametrize(
    "evaluation, stop, words",
    [
        (ASYNC | {"every": None}, None, "evaluation.every is null"),
        (ASYNC | {"resources": {"custom": {"cheap": 1}}}, None, "evaluation.resources={cheap: 1}"),
        (ASYNC, {"metric": "eval/velocty"}, "did you mean 'eval/velocity'?"),
        (
            TINY["evaluation"],
            {"metric": "eval/velocity"},
            "training.stop.metric='eval/velocity' is not measured",
        ),
    ],
)
def test_mistakes_before_anything_starts(evaluation, stop, words, run_home):
    spec = tiny(evaluation=evaluation, training__stop=stop)
    with refused(re.escape(words)):
        check_launch(spec, None, local=True, remote=False)


def test_reserved_resources():
    """Workers do not get the cores that an evaluation reserves; resources that no node has are
    refused.
    """
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0, "cheap": 2.0}]

    def left(**resources):
        return nodes_for_workers(tiny(evaluation={**ASYNC, "resources": resources}), nodes)

    assert left() == nodes == nodes_for_workers(tiny(), nodes)
    assert left(cpus=2, custom={"cheap": 1}) == [nodes[0], {"CPU": 2.0, "cheap": 1.0}]
    assert left(cpus=8) == [{"CPU": 0.0, "GPU": 2.0}, nodes[1]]
    with refused(r"evaluation.resources=\{cpus: 1, dear: 1\} are on no node .* start a node"):
        left(cpus=1, custom={"dear": 1})
    with refused(r"cpus: 9"):
        left(cpus=9)
