"""Requests to a run in training, from the command to the answer, whatever phase the run is in and
however it ends.
"""

import errno
import re
import threading
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from ditlab.api.training import train
from ditlab.errors import RunFailed
from ditlab.home import RunFolder
from ditlab.progress import ignore
from ditlab.receipts.records import STOP_VERB
from ditlab.runs import local, reporter, requests
from ditlab.runs.events import EventReader
from ditlab.runs.reporter import TrackedReporter, TrackedRequests
from ditlab.runs.requests import RequestAnswer, open_requests, post_request
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import update_record
from ditlab.training.evaluation import RunEvaluation
from ditlab.training.inbox import Inbox
from ditlab_addons.ask import request as asking
from ditlab_addons.ask.request import ask
from support.command import run_inside
from support.damage import refused
from support.trainings.workers import tiny

SPEC = {
    "evaluation": {"every": 4, "samples": 0, "limit": 32},
    "sampling": {"steps": 2},
    "tracking__report": False,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "1a2b3c4d").mkdir()
    return RunFolder(tmp_path / "1a2b3c4d")


@pytest.fixture
def asked(monkeypatch):
    """`asked(*verbs)`: the next training finds these requests as it begins; returns the folder's
    place to be.
    """

    def first(*verbs):
        enter = TrackedReporter.__enter__

        def post_and_enter(reporter):
            for verb in verbs:
                post_request(reporter._folder, verb)
            monkeypatch.setattr(TrackedReporter, "__enter__", enter)
            return enter(reporter)

        monkeypatch.setattr(TrackedReporter, "__enter__", post_and_enter)

    return first


def read_answers(folder):
    inbox = Inbox(folder.requests)
    answered = [each for each, is_answered in inbox.listed().items() if is_answered]
    return {each.number: inbox.read(each, RequestAnswer) for each in answered}


def answers(folder):
    return [(each.verb, each.status, each.step) for each in read_answers(folder).values()]


def test_equal_open_requests_are_one_and_a_damaged_answer_is_one_sentence(folder):
    posted = [post_request(folder, verb) for verb in ("sample", "evaluate", "sample", "checkpoint")]
    assert [request.number for request in posted] == [1, 2, 1, 3]
    inbox = Inbox(folder.requests)
    for name in ("00000004-format.json", "notes.txt", ".00000009-sample.json.1a2b.part"):
        (inbox.folder / name).touch()
    assert open_requests(folder) == [posted[0], posted[1], posted[3]]
    inbox.answer(posted[1], RequestAnswer(*posted[1], step=3))
    assert [request.number for request in open_requests(folder)] == [1, 3]
    assert post_request(folder, "evaluate").number == 4
    answer = inbox.folder / "00000002-evaluate.answer.json"
    for text in (answer.read_text()[:20], "[]", '{"verb": 1, "size": 2}'):
        answer.write_text(text)
        with refused(r"evaluate\.answer\.json cannot be read .*; delete it"):
            inbox.read(posted[1], RequestAnswer)


def test_answers_of_the_newest_requests_are_kept(folder, monkeypatch):
    monkeypatch.setattr(requests, "MAX_KEPT", 2)
    for _ in range(5):
        request = post_request(folder, "sample")
        Inbox(folder.requests).answer(request, RequestAnswer(*request))
    assert [request.number for request in Inbox(folder.requests).listed()] == [3, 4, 5]


def test_a_checkpoint_that_cannot_be_written_is_answered(folder):
    post_request(folder, "checkpoint")
    worker = TrackedRequests(SimpleNamespace(folder=folder, set_tags=ignore), print, {}, ignore)
    worker.begin(worker.next(), 3)
    worker.done(3, {})
    worker.saved(2, "elsewhere")
    assert answers(folder) == [] and worker.next() is None
    worker.saved(3, "", "the disk is full.")
    assert answers(folder) == [("checkpoint", "not done", 3)]
    assert read_answers(folder)[1].message == "the disk is full."


def test_each_request_is_answered_recorded_and_done_in_order(run_home, asked, blank_pictures):
    asked("evaluate", "sample", "checkpoint", "evaluate", STOP_VERB)
    result = train(tiny(**SPEC), local=True)
    folder = run_home.run(result.run_id)
    assert answers(folder) == [
        ("evaluate", "done", 1),
        ("sample", "done", 2),
        ("checkpoint", "done", 3),
        (STOP_VERB, "done", 4),
    ]
    assert (result.status, result.step) == ("interrupted", 4)
    evaluation, sample, checkpoint, stop = read_answers(folder).values()
    found = read_content(folder.journal).metrics["eval/velocity"]
    points = dict(zip(found.steps, found.values, strict=True))
    assert sorted(points) == [0, 1, 4] and points[1] == evaluation.metrics["eval/velocity"]
    assert sample.files[0].endswith("asked-00000002.png")
    assert (folder.media / "asked-00000002.png").stat().st_size
    for answer, name in ((checkpoint, "step-00000003"), (stop, "step-00000004")):
        assert answer.checkpoint == str(folder.checkpoints / name)
    events = [event.text for event in EventReader(folder).read_all()]
    told = [text for text in events if text.startswith("asked")]
    assert told[0] == "asked: request 1: evaluate, done at step 1" and len(told) == 4
    # Whoever resumes it wants it to go on: a stop that came too late is withdrawn, the rest is
    # done.
    post_request(folder, STOP_VERB)
    post_request(folder, "sample")
    assert train(tiny(**SPEC), local=True, resume=result.run_id).status == "finished"
    assert answers(folder)[-1] == ("sample", "done", 5) and open_requests(folder) == []


def test_a_trial_s_sweep_hears_nothing_of_what_is_asked(run_home, asked, monkeypatch):
    def as_trial(launch, *arguments, **named):
        return TrackedReporter(launch.changed(trial_channel="trial"), *arguments, **named)

    monkeypatch.setattr(local, "TrackedReporter", as_trial)
    asked("checkpoint", "evaluate", STOP_VERB)
    result = train(tiny(**SPEC), local=True)
    folder = run_home.run(result.run_id)
    assert answers(folder) == [
        ("checkpoint", "not done", 0),
        ("evaluate", "done", 1),
        (STOP_VERB, "not done", 0),
    ]
    assert result.status == "finished" and read_answers(folder)[2].metrics["eval/velocity"]
    assert set(read_content(folder.journal).metrics["eval/velocity"].steps) == {0, 4, 6}


def test_a_person_asks_while_it_trains(run_home, ditlab_in):
    experiment, found = tiny(**SPEC, training__steps=4000, checkpoint__every=None), []
    thread = threading.Thread(target=lambda: found.append(train(experiment, local=True)))
    before = set(run_home.runs.glob("*/run.json"))
    thread.start()
    while not (new := set(run_home.runs.glob("*/run.json")) - before):
        thread.join(0.05)
    folder = RunFolder(new.pop().parent)
    try:
        said = ditlab_in("ask", folder.run_id, "evaluate", "--json").ok()  # while it starts
        assert (said.json["status"], said.json["run_id"]) == ("done", folder.run_id)
        assert said.json["metrics"]["eval/velocity"] > 0
        later = ditlab_in("ask", folder.run_id, "checkpoint", "--no-wait", "--json").ok()
        assert later.json["status"] in ("open", "done")
        said = ditlab_in("ask", folder.run_id, STOP_VERB).ok()
        assert "done at step" in said.out and "step-" in said.out
    finally:
        if thread.is_alive():
            post_request(folder, STOP_VERB)
        thread.join()
    assert found[0].status == "interrupted"
    done = [verb for verb, status, _ in answers(folder) if status == "done"]
    assert done[:3] == ["evaluate", "checkpoint", STOP_VERB]


@pytest.fixture
def ditlab_in(run_home):
    return partial(run_inside, home=run_home.root)


def test_a_run_that_is_over_is_one_sentence(run_home, ditlab_in):
    run_id = next(run_home.runs.iterdir()).name
    for run, verb, sentence in (
        (run_id, "sample", f"is finished.*`ditlab sample {run_id}`"),
        (run_id, "evaluate", f"is finished.*`ditlab evaluate {run_id}`"),
        ("nobody", "sample", "of another DITLAB_HOME"),
    ):
        said = ditlab_in("ask", run, verb).refused()
        assert re.search(sentence, said.err), said.err
    assert ditlab_in("ask", run_id, "smaple").code == 2
    with refused("'dance' is no request to a run"):
        ask(run_home.run(run_id), "dance")
    assert not run_home.run(run_id).requests.exists()


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_lost_run_keeps_the_request_and_one_that_is_over_does_not(
    run_home, monkeypatch, ditlab_in, status
):
    folder = run_home.run(next(run_home.runs.iterdir()).name)
    states = iter(["", f"run {folder.run_id} is over."])  # between the request and the first look
    monkeypatch.setattr(asking, "refusal", lambda *_: next(states))
    update_record(folder, status=status)
    answer = ask(folder, "sample")
    is_kept = status == "running"
    told = "asked for and not done yet: sample." in ditlab_in("runs", "show", folder.run_id).err
    later = "is done once the run goes on" in answer.message
    assert told == later == is_kept and answer.status == "not done"
    assert [each.verb for each in open_requests(folder)] == ["sample"] * is_kept


def test_what_comes_too_late_is_said(run_home, asked):
    asked("checkpoint", "evaluate", "sample")
    late = train(tiny(**SPEC, training__steps=1), local=True)
    checkpoint, *others = read_answers(run_home.run(late.run_id)).values()
    assert (checkpoint.status, checkpoint.step) == ("done", 1)
    for answer in others:
        assert answer.status == "not done"
        assert "has ended meanwhile (finished) at step 1" in answer.message


@pytest.mark.parametrize(
    "error", [RunFailed("out of memory", kind="out_of_memory"), RuntimeError("the worker is gone")]
)
def test_what_fails_is_not_done_and_what_crashes_is_done_again(run_home, asked, monkeypatch, error):
    before = set(run_home.runs.iterdir())
    with monkeypatch.context() as patched, pytest.raises(type(error)):
        asked("sample")
        patched.setattr(RunEvaluation, "sample", Mock(side_effect=error))
        train(tiny(**SPEC), local=True)
    folder = run_home.run((set(run_home.runs.iterdir()) - before).pop().name)
    assert len(open_requests(folder)) + len(answers(folder)) == 1
    train(tiny(**SPEC), local=True, resume=folder.run_id)
    answer = read_answers(folder)[1]
    status, message = ("done", "")
    if isinstance(error, RunFailed):
        status, message = ("not done", "the run has failed meanwhile: out of memory")
    assert (answer.status, answer.step) == (status, 1) and message in answer.message


def test_samples_that_the_disk_refuses_are_not_done(run_home, asked, monkeypatch):
    asked("sample")
    refusal = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(reporter, "save_grid", Mock(side_effect=refusal))
    result = train(tiny(**SPEC), local=True)
    answer = read_answers(run_home.run(result.run_id))[1]
    assert (answer.status, answer.files) == ("not done", [])
    assert "No space left on device); make room" in answer.message


@pytest.mark.slow
def test_a_run_that_was_asked_is_replayed_and_verified_to_the_bit(run_home, asked, ditlab_in):
    asked("sample", "evaluate", "checkpoint")
    result = train(tiny(**SPEC), local=True)
    for command, *options in (
        ("replay", "--step", "1", "--to", "6", "--check"),
        ("verify", "--steps", "3"),
    ):
        ditlab_in(command, result.run_id, *options, "--json").ok()
