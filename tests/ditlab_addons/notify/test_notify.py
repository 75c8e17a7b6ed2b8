"""`notify`: messages about a run's events reach webhooks and apprise, hold no step, and show no
address.
"""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from ditlab.api.training import train
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home
from ditlab.runs.events import EventReader
from ditlab.runs.observers import RunEnd, RunObservers
from ditlab.secrets import hide
from ditlab.spec.files import encode_recorded
from ditlab.sweeps.progress import SweepTrials
from ditlab.tracking.records import this_process, update_record
from ditlab_addons.notify import messages, observing, watching
from ditlab_addons.notify.observing import Notifier, check_addresses
from ditlab_addons.notify.section import Notification
from support.clusters.faults import wait_until
from support.damage import refused
from support.journaled import JournaledRun
from support.sweeps import BASE, planned, started, sweep_of, trial_run
from support.trainings.workers import tiny

TOKEN = "T0K3N-of-a-webhook"
EVERY = (Notification(on=("finished", "failed", "diverged", "lost"), to="env:SOME_HOOK"),)


class Receiver(ThreadingHTTPServer):
    """A webhook on loopback that keeps what it gets."""

    daemon_threads = True

    def __init__(self, manner):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manner, self.got, self.is_over = manner, [], threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/{TOKEN}"

    def handle_error(self, *_):
        """Say nothing of a sender that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self):
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.manner == "slow":
            self.server.is_over.wait(60)
        refused = {"refuses": 1000, "recovers": 1}.get(self.server.manner, 0)
        self.send_response(503 if len(self.server.got) <= refused else 200)
        self.end_headers()
        while self.server.manner == "floods" and not self.server.is_over.is_set():
            self.wfile.write(b"x" * 65536)

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def receiver(request, monkeypatch):
    """A receiver, whose address is in SOME_HOOK; its manner is the parameter."""
    monkeypatch.setattr(messages, "PAUSE", 0.01)
    with Receiver(getattr(request, "param", "answers")) as found:
        threading.Thread(
            target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        monkeypatch.setenv("SOME_HOOK", found.address)
        yield found
        found.is_over.set()
        found.shutdown()


@pytest.fixture
def run(home):
    """A run in training, evaluated before its first step."""
    found = JournaledRun(home)
    found.start()
    found.add("tags", values={"ditlab.main_metric": "eval/velocity"})
    found.evaluate(0, **{"eval/velocity": 2.0})
    found.save()
    return found


def notified(run, warn):
    """The observers of the run: the notifier."""
    folder = run.folder
    make = lambda event, reason: messages.run_message(folder, event, reason)  # noqa: E731
    return RunObservers([Notifier(folder, EVERY, warn, make)], warn)


def end(run, warn, lost=False):
    """End the run, perhaps after a loss, and wait for its messages."""
    with notified(run, warn) as observers:
        if lost:
            offer(observers, "lost")
        observers.end = RunEnd("finished")


def offer(observers, *offer):
    (notifier,) = observers._observers
    notifier.offer(*offer)


def events_of(folder):
    return [event.text for event in EventReader(folder).read_all() if event.kind == "notification"]


def everything_below(root):
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def test_each_event_once_with_result_picture_and_next_command(run, receiver):
    folder, run_id = run.folder, run.folder.run_id
    run.evaluate(30, **{"eval/velocity": 1.0})
    run.save()
    with notified(run, pytest.fail) as observers:
        for kind in ("lost_worker", "lost_worker", "out_of_memory"):
            tags = {"ditlab.failure": kind, "ditlab.failure_message": "worker 1 died"}
            observers.tell(lambda each, tags=tags: each.attempt_failed(tags))
        wait_until(lambda: receiver.got, 30, "a message")
        observers.end = RunEnd("finished")
    lost, finished = receiver.got
    assert [each["event"] for each in receiver.got] == ["lost", "finished"]
    assert "lost worker: worker 1 died" in lost["text"]
    assert finished["text"].startswith("step 30 of 40\neval/velocity 1 at step 30; 2 untrained\n")
    assert (finished["metric"], finished["value"], finished["step"]) == ("eval/velocity", 1.0, 30)
    assert finished["picture"] == str(folder.media / "samples-00000030.png")
    assert finished["title"].endswith("finished")
    assert finished["next"] == f"ditlab report {run_id}"
    assert finished["text"].endswith(f"next: {finished['next']}")
    sent = [f"notified of {event} by env:SOME_HOOK, sent" for event in ("lost", "finished")]
    assert events_of(folder) == sent


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (RunFailed("loss is NaN", kind="diverged"), "diverged"),
        (ValueError(f"no {TOKEN}"), "failed"),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_failure_is_told_and_an_interruption_is_none(run, receiver, error, event):
    check_addresses(EVERY, False, pytest.fail)
    with pytest.raises(type(error)), notified(run, pytest.fail):
        raise error
    assert [each["event"] for each in receiver.got] == ([event] if event else [])
    if event == "failed":
        assert f"--resume {run.folder.run_id}" in receiver.got[0]["next"]


@pytest.mark.parametrize(
    ("receiver", "reason"),
    [
        ("slow", "TimeoutError"),
        ("refuses", "it answers 503"),
        ("floods", ""),
        ("nobody", "ConnectionRefusedError"),
    ],
    indirect=["receiver"],
)
def test_a_bad_receiver_holds_nothing_and_is_warned_of(run, receiver, reason, monkeypatch):
    monkeypatch.setattr(messages, "TIMEOUT", 0.3)
    if receiver.manner == "nobody":
        receiver.shutdown()
        receiver.server_close()
    warnings, began = [], time.monotonic()
    with notified(run, warnings.append) as observers:
        offer(observers, "lost")
        offered = time.monotonic() - began
        observers.end = RunEnd("finished")
    assert offered < 1 and time.monotonic() - began < 20
    if reason:
        said = f"by env:SOME_HOOK, not sent (address 1: {reason})"
        events = [f"notified of {event} {said}" for event in ("finished", "lost")]
        assert sorted(events_of(run.folder)) == events and len(warnings) == 2
        assert f"did not reach env:SOME_HOOK (address 1: {reason})." in warnings[0]
    else:  # it has the message, and its reply is not read
        assert not warnings and len(receiver.got) == 2
    assert all(TOKEN not in text and str(receiver.server_port) not in text for text in warnings)
    assert TOKEN.encode() not in everything_below(run.home.root)


@pytest.mark.parametrize("receiver", ["slow"], indirect=True)
def test_the_end_waits_a_bounded_time(run, receiver, monkeypatch):
    monkeypatch.setattr(observing, "END_WAIT", 0.1)
    warnings = []
    end(run, warnings.append)
    (warning,) = warnings
    assert "given up 0.1 s after the end" in warning
    (event,) = events_of(run.folder)
    assert event.endswith("by its receiver, not sent (given up 0.1 s after the end)")
    # begun later, it would read the address of the next test's receiver
    wait_until(lambda: receiver.got, 30, "a message")


def test_one_address_of_several_that_fails_is_numbered_and_the_others_have_the_message(
    run, receiver, monkeypatch
):
    monkeypatch.setenv("SOME_HOOK", f"{receiver.address},http://127.0.0.1:1/{TOKEN}")
    assert messages.send("SOME_HOOK", {"event": "lost"}) == "address 2: ConnectionRefusedError"
    assert receiver.got == [{"event": "lost"}]


@pytest.mark.parametrize("receiver", ["recovers"], indirect=True)
def test_what_failed_is_tried_a_second_time(run, receiver):
    end(run, pytest.fail)
    assert len(receiver.got) == 2
    assert events_of(run.folder) == ["notified of finished by env:SOME_HOOK, sent"]


def test_a_whole_run_tells_of_its_end_and_shows_no_address(home, receiver, capfd):
    notify = [{"on": ["finished", "failed"], "to": "env:SOME_HOOK"}]
    result = train(tiny(training__steps=2, notify=notify), local=True)
    (got,) = receiver.got
    assert (got["event"], got["step"], got["run_id"]) == ("finished", 2, result.run_id)
    said = "".join(capfd.readouterr())
    assert TOKEN.encode() not in everything_below(home) and TOKEN not in said
    assert hide(f"to {receiver.address}") == "to ***"


def test_a_variable_that_is_unset_ends_a_new_run_and_is_a_warning_of_a_resumed_one(
    home, monkeypatch
):
    monkeypatch.delenv("SOME_HOOK", raising=False)
    spec = tiny(training__steps=2, notify=[{"on": ["finished"], "to": "env:SOME_HOOK"}])
    sentence = r"^notify\.0\.to=env:SOME_HOOK names the environment variable SOME_HOOK: it is"
    with refused(sentence):
        train(spec, local=True)
    assert not any(home.glob("train/*"))
    warnings = []
    check_addresses(spec.notify, True, warnings.append)
    (warning,) = warnings
    assert "it is not set; export it, or leave `notify` out" in warning


@pytest.mark.parametrize(
    "address", [f"https://user:{TOKEN}@host/x", f"http://host:{TOKEN}/x", "https:///x"]
)
def test_an_address_that_cannot_be_used_is_refused_without_repeating_it(address, monkeypatch):
    monkeypatch.setenv("SOME_HOOK", f"https://fine.example/x, {address}")
    with pytest.raises(
        UserError, match=r"SOME_HOOK: address 2 in it is no http\(s\)://HOST/PATH without"
    ) as caught:
        check_addresses(EVERY, False, pytest.fail)
    assert TOKEN not in str(caught.value) and "fine" not in str(caught.value)


def test_what_needs_apprise_says_so_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    problem = messages.problem_of(f"tgram://{TOKEN}/1")
    assert problem == "needs apprise, which is not installed: pip install 'ditlab[notify]'"


def test_apprise_sends_the_picture(run, receiver, caplog):
    pytest.importorskip("apprise")
    address = receiver.address.replace("http://", "json://")
    message = messages.run_message(run.folder, "finished")
    assert messages.problem_of(address) == ""
    assert messages.problem_of(f"nothing://{TOKEN}").startswith("is none that apprise knows")
    assert messages._send_by_apprise(address, message) == ""
    (got,) = receiver.got
    assert got["title"] == message["title"] and "eval/velocity 2" in got["message"]
    assert [each["filename"] for each in got["attachments"]] == ["samples-00000000.png"]
    receiver.manner = "refuses"
    assert messages._send_by_apprise(address, message) == "apprise could not send it"
    assert TOKEN not in caplog.text


def test_a_fault_of_one_message_costs_itself_alone(run, receiver, monkeypatch):
    made, warnings = messages.run_message, []

    def broken(folder, event, *arguments, **options):
        if event == "lost":
            raise RuntimeError("no message")
        return made(folder, event, *arguments, **options)

    monkeypatch.setattr(messages, "run_message", broken)
    end(run, warnings.append, lost=True)
    assert [each["event"] for each in receiver.got] == ["finished"]
    assert "notified of lost by env:SOME_HOOK, not sent (no message)" in events_of(run.folder)
    assert "no message" in warnings[0]


def test_watch_tells_of_a_loss_and_refuses_where_none_is_awaited(
    ditlab, run, receiver, monkeypatch
):
    run.home.ensure()
    run_id = run.folder.run_id
    spec = tiny(notify=[{"on": ["lost"], "to": "env:SOME_HOOK"}])
    run.folder.spec.write_bytes(encode_recorded(spec.to_dict()))
    update_record(run.folder, status="failed")
    ditlab("watch", run_id, "--notify", "--no-open").refused(
        "does not ask for `lost`; leave --notify out"
    )
    update_record(run.folder, status="running")  # by this process
    monkeypatch.setattr(watching, "CHECK_INTERVAL", 0.05)
    watching.watch_loss(run.folder, pytest.fail)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    content = json.loads(run.folder.record.read_text())
    gone = {**this_process(), "pid": str(dead.pid)}
    run.folder.record.write_text(json.dumps({**content, "process": gone}))
    wait_until(lambda: events_of(run.folder), 30, "an event")
    (got,) = receiver.got
    assert got["event"] == "lost" and f"--resume {run_id}" in got["next"]
    assert "the process that led it is gone" in got["text"]


def test_a_sweep_tells_of_its_end_and_trials_of_nothing(home, monkeypatch):
    sent = []
    monkeypatch.setattr(
        observing, "send", lambda variable, message: sent.append((variable, message)) or ""
    )
    told = [{"on": ["finished", "lost"], "to": "env:HOOK"}]
    one = started(sweep_of(trials=3, notify=told, base={**BASE, "notify": told}))
    assert json.loads(json.dumps(one.sweep.to_dict()))["notify"] == told
    trials = planned(one)
    states = SweepTrials(one, SimpleNamespace(topics=list), print)
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:1/{TOKEN}")
    make = observing.observe_sweep(one.sweep, False, pytest.fail)
    with RunObservers([make(one, states)], pytest.fail) as observers:
        for number, value in ((0, 3.0), (1, 4.0), (2, 1.0)):
            trial_run(Home(home), one.sweep, trials[number], "finished", {0: 5.0, 6: value})
            states.read(is_last=True)
        observers.end = RunEnd("stopped", "time_budget is used up")
    ((variable, finished),) = sent
    assert (finished["event"], variable) == ("finished", "HOOK")
    assert finished["text"].startswith(
        f"3 of 3 trials have ended\nbest: trial 2 (run {trials[2].run_id}), eval/velocity 1 at "
        "step 6; 5 untrained\ntime_budget is used up\n"
    )
    assert finished["next"] == f"ditlab report {one.folder.sweep_id}"
    assert not any(Home(home).run(trial.run_id).added_events.exists() for trial in trials)
