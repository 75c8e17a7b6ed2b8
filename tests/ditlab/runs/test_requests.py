"""Requests to a run in training, from the command to the answer, whatever phase the run is in and however it ends."""

import errno
import threading
from unittest.mock import Mock

import pytest

from ditlab.api.training import train
from ditlab.checkpoints.store import CheckpointStore
from ditlab.errors import RunFailed, UserError
from ditlab.home import RunFolder
from ditlab.receipts.records import STOP_VERB
from ditlab.runs import local, reporter
from ditlab.runs.events import EventReader
from ditlab.runs.reporter import TrackedReporter
from ditlab.runs.requests import RequestDesk, open_requests, read_answer, write_request
from ditlab.tracking.journal import read_content
from ditlab.tracking.records import update_record
from ditlab.training.evaluation import RunEvaluation
from ditlab_addons.ask import asking
from ditlab_addons.ask.asking import ask
from support.command import run_here
from support.trainings.workers import same_state, tiny

SPEC = {"evaluation": {"every": 4, "samples": 0, "limit": 32}, "sampling": {"steps": 2}, "tracking__report": False}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "1a2b3c4d").mkdir()
    return RunFolder(tmp_path / "1a2b3c4d")


@pytest.fixture
def asked(monkeypatch):
    """`asked(*verbs)`: the next training finds these requests as it begins; returns the folder's place to be."""

    def first(*verbs):
        start = RequestDesk.start

        def write_and_start(desk):
            for verb in verbs:
                write_request(desk._folder, verb)
            start(desk)
            monkeypatch.setattr(RequestDesk, "start", start)

        monkeypatch.setattr(RequestDesk, "start", write_and_start)

    return first


def answers(folder):
    found = [read_answer(folder, number) for number in range(1, 9)]
    return [(each.verb, each.status, each.step) for each in found if each]


def test_equal_open_requests_are_one_and_a_damaged_file_costs_itself_alone(folder):
    numbers = [write_request(folder, verb).number for verb in ("sample", "evaluate", "sample", "checkpoint")]
    assert numbers == [1, 2, 1, 3]
    torn = folder.requests / "00000002.json"
    torn.write_bytes(torn.read_bytes()[:20])
    (folder.requests / "00000004.json").write_text('{"number": 4, "verb": "format", "time": 1}')
    (folder.requests / "00000005.json").symlink_to("/dev/zero")
    said = []
    desk = RequestDesk(folder, said.append, {})
    for _ in range(3):
        desk._look()
    assert [each.verb for each in open_requests(folder)] == ["sample", "checkpoint"]
    assert len(said) == 3 and all("is damaged" in text and "ask again" in text for text in said), said
    assert write_request(folder, "evaluate").number == 6


def test_what_a_killed_process_had_begun_is_done_again(folder):
    write_request(folder, "evaluate")
    for _ in range(2):
        desk = RequestDesk(folder, print, {})
        desk.start()
        request = desk.next()
        assert request is not None and request.verb == "evaluate"
        desk.begin(request.number, request.verb, 3)
        assert desk.next() is None  # once a process
        desk.close()  # as a kill: without an answer
    assert answers(folder) == []


def test_what_a_run_does_not_do_and_what_the_disk_refuses_is_said(folder):
    for verb in (STOP_VERB, "checkpoint"):
        write_request(folder, verb)
    desk = RequestDesk(folder, print, {STOP_VERB: "the run is a trial."})
    desk.start()
    desk.begin(desk.next().number, "checkpoint", 3)
    assert desk.done({}) is None and desk.saved(2, "elsewhere") == []
    assert [answer.message for answer in desk.saved(3, problem="the disk is full.")] == ["the disk is full."]
    desk.close("the run has ended.")
    assert answers(folder) == [(STOP_VERB, "not done", 0), ("checkpoint", "not done", 3)]
    assert read_answer(folder, 1).message == "the run is a trial."


def test_each_request_is_answered_recorded_and_done_in_order(run_home, asked, blank_pictures):
    asked("evaluate", "sample", "checkpoint", "evaluate", STOP_VERB)
    result = train(tiny(**SPEC), local=True)
    folder = run_home.run(result.run_id)
    assert answers(folder) == [
        ("evaluate", "done", 1), ("sample", "done", 2), ("checkpoint", "done", 3), (STOP_VERB, "done", 4),
    ]  # fmt: skip
    assert (result.status, result.step) == ("interrupted", 4)
    evaluation, sample, checkpoint, stop = (read_answer(folder, number) for number in range(1, 5))
    found = read_content(folder.journal).metrics["eval/velocity"]
    points = dict(zip(found.steps, found.values, strict=True))
    assert sorted(points) == [0, 1, 4] and points[1] == evaluation.metrics["eval/velocity"]
    assert sample.files[0].endswith("asked-00000002.png") and (folder.media / "asked-00000002.png").stat().st_size
    assert [checkpoint.checkpoint, stop.checkpoint] == [str(folder.checkpoints / f"step-0000000{n}") for n in (3, 4)]
    told = [event.text for event in EventReader(folder).read_all() if event.text.startswith("asked")]
    assert told[0] == "asked: request 1: evaluate, done at step 1" and len(told) == 4
    # Whoever resumes it wants it to go on: a stop that came too late is withdrawn, the rest is done.
    write_request(folder, STOP_VERB)
    write_request(folder, "sample")
    assert train(tiny(**SPEC), local=True, resume=result.run_id).status == "finished"
    assert answers(folder)[-1] == ("sample", "done", 5) and open_requests(folder) == []
    plain = train(tiny(**SPEC), local=True)
    stores = [CheckpointStore.at(run_home.run(run_id).checkpoints).newest() for run_id in (result.run_id, plain.run_id)]
    assert same_state(*stores)


def test_a_trial_s_sweep_hears_nothing_of_what_is_asked(run_home, asked, monkeypatch):
    def as_trial(launch, *arguments, **named):
        return TrackedReporter(launch.changed(trial_channel="trial"), *arguments, **named)

    monkeypatch.setattr(local, "TrackedReporter", as_trial)
    asked("checkpoint", "evaluate", STOP_VERB)
    result = train(tiny(**SPEC), local=True)
    folder = run_home.run(result.run_id)
    assert answers(folder) == [("checkpoint", "not done", 0), ("evaluate", "done", 1), (STOP_VERB, "not done", 0)]
    assert result.status == "finished" and read_answer(folder, 2).metrics["eval/velocity"]
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
        said = ditlab_in("ask", folder.run_id, "evaluate", "--json")  # while it starts
        assert (said.code, said.json["status"], said.json["run_id"]) == (0, "done", folder.run_id), said.err
        assert said.json["metrics"]["eval/velocity"] > 0
        later = ditlab_in("ask", folder.run_id, "checkpoint", "--no-wait", "--json")
        assert later.code == 0 and later.json["status"] in ("open", "done"), later.err
        said = ditlab_in("ask", folder.run_id, STOP_VERB)
        assert said.code == 0 and "done at step" in said.out and "step-" in said.out, said.err
    finally:
        if thread.is_alive():
            write_request(folder, STOP_VERB)
        thread.join()
    assert found[0].status == "interrupted"
    done = [verb for verb, status, _ in answers(folder) if status == "done"]
    assert done[:3] == ["evaluate", "checkpoint", STOP_VERB]


@pytest.fixture
def ditlab_in(run_home, capfd, monkeypatch):
    return lambda *arguments: run_here(capfd, monkeypatch, *arguments)


def test_a_run_that_is_over_is_one_sentence(run_home, ditlab_in):
    run_id = next(run_home.runs.iterdir()).name
    for verb, instead in (("sample", f"`ditlab sample {run_id}`"), ("evaluate", f"`ditlab evaluate {run_id}`")):
        said = ditlab_in("ask", run_id, verb)
        assert said.code == 2 and instead in said.err and "is finished" in said.err
        assert len(said.err.strip().splitlines()) == 1
    assert "invalid choice" in (said := ditlab_in("ask", run_id, "smaple")).err.lower() or "is not one of" in said.err
    assert said.code == 2
    assert (said := ditlab_in("ask", "nobody", "sample")).code == 2 and "of another DITLAB_HOME" in said.err
    with pytest.raises(UserError, match="'dance' is nothing that a run can be asked for"):
        ask(run_home.run(run_id), "dance")
    assert not run_home.run(run_id).requests.exists()


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_lost_run_keeps_the_request_and_one_that_is_over_does_not(run_home, monkeypatch, ditlab_in, status):
    folder = run_home.run(next(run_home.runs.iterdir()).name)
    states = iter(["", f"run {folder.run_id} is over."])  # between the request and the first look
    monkeypatch.setattr(asking, "refusal", lambda *_: next(states))
    update_record(folder, status=status)
    answer = ask(folder, "sample")
    told = "asked for and not done yet: sample." in ditlab_in("runs", "show", folder.run_id).err
    assert told == (status == "running")
    assert answer.status == "not done" and ("is done once the run goes on" in answer.message) == (status == "running")
    assert [each.verb for each in open_requests(folder)] == (["sample"] if status == "running" else [])


def test_what_comes_too_late_and_what_fails_is_said(run_home, asked, monkeypatch):
    asked("checkpoint", "evaluate", "sample")
    late = train(tiny(**SPEC, training__steps=1), local=True)
    assert answers(run_home.run(late.run_id)) == [
        ("checkpoint", "done", 1), ("evaluate", "not done", 0), ("sample", "not done", 0),
    ]  # fmt: skip
    assert "has ended meanwhile (finished) at step 1" in read_answer(run_home.run(late.run_id), 2).message

    def refuse(self, state):
        raise RunFailed("out of memory while sampling", kind="out_of_memory")

    asked("sample")
    monkeypatch.setattr(RunEvaluation, "sample", refuse)
    before = set(run_home.runs.iterdir())
    with pytest.raises(RunFailed):
        train(tiny(**SPEC), local=True)
    folder = run_home.run((set(run_home.runs.iterdir()) - before).pop().name)
    assert answers(folder) == [("sample", "not done", 1)]  # a resume goes on without it
    assert "out of memory while sampling" in read_answer(folder, 1).message


def test_samples_that_the_disk_refuses_are_not_done(run_home, asked, monkeypatch):
    asked("sample")
    refusal = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(reporter, "save_grid", Mock(side_effect=refusal))
    result = train(tiny(**SPEC), local=True)
    answer = read_answer(run_home.run(result.run_id), 1)
    assert (answer.status, answer.files) == ("not done", []) and "No space left on device); make room" in answer.message


@pytest.mark.slow
def test_a_run_that_was_asked_is_replayed_and_verified_to_the_bit(run_home, asked, ditlab_in):
    asked("sample", "evaluate", "checkpoint")
    result = train(tiny(**SPEC), local=True)
    said = ditlab_in("replay", result.run_id, "--step", "1", "--to", "6", "--check", "--json")
    assert said.code == 0, said.err
    assert [step["asked"] for step in said.json["steps"]][:4] == ["sample", "evaluate", "checkpoint", None]
    said = ditlab_in("verify", result.run_id, "--steps", "3", "--json")
    assert said.code == 0, said.err
