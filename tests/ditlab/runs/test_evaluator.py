"""The evaluator of a run: lost ones are started again, mistakes are one sentence, a second terminal does as
much."""

import pytest

from ditlab.analysis.evaluation import follow_checkpoints
from ditlab.api.run import open_run
from ditlab.api.training import train
from ditlab.cluster.capacity import nodes_for_workers
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.runs import evaluator
from ditlab.runs.evaluator import async_evaluator
from ditlab.runs.launch import Launch
from ditlab.runs.locks import lock_evaluation
from ditlab.runs.prepare import check_launch
from ditlab.tracking.history import JournalFacts, metric_history
from ditlab.tracking.journal import read_content
from ditlab.training.inbox import EVALUATE, EvaluationAnswer, Inbox, Request
from support.clusters.faults import wait_until
from support.command import run_here
from support.trainings.workers import tiny

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
    ("changes", "words"),
    [
        ({"evaluation": {**ASYNC, "every": None}}, "evaluation.every is null"),
        ({"evaluation": {**ASYNC, "resources": {"custom": {"cheap": 1}}}}, "evaluation.resources={cheap: 1}"),
        ({"training__stop": {"metric": "eval/velocty"}, "evaluation": ASYNC}, "did you mean 'eval/velocity'?"),
        ({"training__stop": {"metric": "eval/velocity"}}, "training.stop.metric='eval/velocity' is not measured"),
    ],
)
def test_mistakes_before_anything_starts(changes, words, run_home):
    with pytest.raises(UserError) as error:
        check_launch(tiny(**changes), None, local=True, remote=False)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_reserved_resources():
    """Workers do not get the cores that an evaluation reserves; resources that no node has are refused."""
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0, "cheap": 2.0}]

    def left(**resources):
        return nodes_for_workers(tiny(evaluation={**ASYNC, "resources": resources}), nodes)

    assert left() == nodes == nodes_for_workers(tiny(), nodes)
    assert left(cpus=2, custom={"cheap": 1}) == [nodes[0], {"CPU": 2.0, "cheap": 1.0}]
    assert left(cpus=8) == [{"CPU": 0.0, "GPU": 2.0}, nodes[1]]
    with pytest.raises(UserError, match=r"evaluation.resources=\{cpus: 1, dear: 1\} are on no node .* start a node"):
        left(cpus=1, custom={"dear": 1})
    with pytest.raises(UserError, match=r"cpus: 9"):
        left(cpus=9)


def test_a_second_terminal_follows(run_home):
    """The newest checkpoint of a run that is over is evaluated once; two do not follow one run."""
    run = open_run(next(each.name for each in run_home.runs.iterdir()))
    with lock_evaluation(run.folder), pytest.raises(UserError, match="followed by another"):
        next(iter(run.follow()))
    (found,) = run.follow()
    assert found.step == 2 and not list(run.folder.checkpoints.glob("*/fork-*"))
    history = metric_history(run.folder)["eval/velocity"]
    assert history.steps.tolist().count(2) == 1
    (again,) = run.follow()
    assert again.metrics == found.metrics
    assert metric_history(run.folder)["eval/velocity"].steps.tolist() == history.steps.tolist()
    refused = open_run(run.id)._opened()
    object.__setattr__(refused, "experiment", tiny(evaluation=ASYNC))
    with pytest.raises(UserError, match="leave --watch out"):
        next(follow_checkpoints(refused, None, None))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inline", "async"])
def test_an_early_stop_is_replayed_and_verified_to_the_bit(mode, run_home, capfd, monkeypatch):
    """The loss falls, so that a run which wants it to rise ends at its first due evaluations."""
    stop = {"metric": "eval/velocity", "mode": "max", "patience": 1}
    evaluation = {**ASYNC, "mode": mode}
    spec = tiny(training__steps=3000, training__stop=stop, evaluation=evaluation, checkpoint={"every": None})
    result = train(spec, local=True)
    assert result.status == "finished" and 2 <= result.step < 3000
    folder = run_home.run(result.run_id)
    assert JournalFacts.of(read_content(folder.journal)).tags["ditlab.early_stop"].startswith(f"{result.step}: ")
    to = str(min(40, result.step))
    for check in (("replay", result.run_id, "--step", "1", "--to", to, "--check"), ("verify", result.run_id)):
        said = run_here(capfd, monkeypatch, *check, "--json")
        assert said.code == 0, said.err
