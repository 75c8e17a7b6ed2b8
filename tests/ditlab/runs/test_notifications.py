"""`notify`: messages about a run's events reach webhooks and apprise, hold no step, and show no address."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from ditlab.api.training import train
from ditlab.errors import RunFailed, UserError
from ditlab.home import Home, RunFolder
from ditlab.runs import notification_sender, notifications
from ditlab.runs.events import EventReader
from ditlab.runs.notifications import RunNotifier, check_receivers, follow_loss, send_owed
from ditlab.secrets import hide
from ditlab.spec.engine import Notification
from ditlab.tracking.records import this_process, update_record
from support.journaled import JournaledRun
from support.trainings.workers import tiny

TOKEN = "T0K3N-of-a-webhook"
EVERY = (Notification(on=("finished", "failed", "diverged", "best", "lost"), to="env:SOME_HOOK"),)


class Receiver(ThreadingHTTPServer):
    """A webhook on loopback that keeps what it gets."""

    daemon_threads = True

    def __init__(self, manner: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manner, self.got, self.is_over = manner, [], threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/{TOKEN}"

    def handle_error(self, *_) -> None:
        """Say nothing of a sender that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.manner == "slow":
            self.server.is_over.wait(60)
        self.send_response({"refuses": 403, "redirects": 302}.get(self.server.manner, 200))
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.end_headers()
        while self.server.manner == "floods" and not self.server.is_over.is_set():
            self.wfile.write(b"x" * 65536)

    def log_message(self, *_) -> None:
        """Print nothing."""


@pytest.fixture
def receiver(request, monkeypatch):
    """A receiver, whose address is in SOME_HOOK; its manner is the parameter."""
    monkeypatch.setattr(notifications, "PAUSES", (0.01, 0.01))
    with Receiver(getattr(request, "param", "answers")) as found:
        threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
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


def events_of(folder: RunFolder) -> list[tuple[str, str, str]]:
    lines = map(json.loads, folder.notifications.read_text().splitlines())
    return [(line["event"], line["to"], line["failure"]) for line in lines]


def everything_below(root) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


def wait_for(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


def test_each_event_once_with_result_picture_and_next_command(run, receiver, monkeypatch):
    monkeypatch.setattr(notifications, "LOOK", 0.05)
    folder, run_id = run.folder, run.folder.run_id
    with RunNotifier(folder, EVERY, pytest.fail) as notifier:
        notifier.progress = SimpleNamespace(step=20, seconds_left=95.0)
        for step, value in ((10, 1.5), (20, 1.25), (30, 1.0)):  # better thrice within the interval
            run.evaluate(step, **{"eval/velocity": value})
            run.save()
            wait_for(lambda: receiver.got)
        for _ in range(2):
            notifier.attempt_failed({"ditlab.failure": "lost_worker", "ditlab.failure_message": "worker 1 died"})
        notifier.attempt_failed({"ditlab.failure": "out_of_memory"})
        notifier.offer("finished")
    best, lost, finished = receiver.got
    assert [each["event"] for each in receiver.got] == ["best", "lost", "finished"]
    assert best["text"].startswith("step 20 of 40, 1:35 left\neval/velocity 1.5 at step 10; 2 untrained\n")
    assert best["seconds_left"] == 95.0 and "lost worker: worker 1 died" in lost["text"]
    assert (finished["metric"], finished["value"], finished["first"]) == ("eval/velocity", 1.0, 2.0)
    assert finished["picture"] == str(folder.media / "samples-00000030.png") and finished["title"].endswith("finished")
    assert finished["next"] == f"ditlab report {run_id}" and finished["text"].endswith(f"next: ditlab report {run_id}")
    assert events_of(folder) == [(event, "env:SOME_HOOK", "") for event in ("best", "lost", "finished")]
    texts = [event.text for event in EventReader(folder).read_all() if event.kind == "notification"]
    assert texts[-1] == "notified of finished by env:SOME_HOOK, sent" and not folder.owed_notification.exists()


@pytest.mark.parametrize(
    ("error", "event"),
    [(RunFailed("loss is NaN", kind="diverged"), "diverged"), (ValueError(f"no {TOKEN}"), "failed"),
     (KeyboardInterrupt(), None)],
)  # fmt: skip
def test_a_failure_is_told_and_an_interruption_is_none(run, receiver, error, event):
    check_receivers(EVERY, False, pytest.fail)
    with pytest.raises(type(error)), RunNotifier(run.folder, EVERY, pytest.fail):
        raise error
    assert [each["event"] for each in receiver.got] == ([event] if event else [])
    if event == "failed":
        assert f"--resume {run.folder.run_id}" in receiver.got[0]["next"]


@pytest.mark.parametrize("receiver", ["slow", "refuses", "redirects", "floods", "nobody"], indirect=True)
def test_a_bad_receiver_holds_nothing_and_is_warned_of(run, receiver, monkeypatch):
    monkeypatch.setattr(notifications, "TIMEOUT", 0.3)
    if receiver.manner == "nobody":
        receiver.server_close()
    warnings, began = [], time.monotonic()
    with RunNotifier(run.folder, EVERY, warnings.append) as notifier:
        for _ in range(100):
            notifier.offer("best")
        offered = time.monotonic() - began
        notifier.offer("finished")
    assert offered < 1 and time.monotonic() - began < 20
    reasons = {"slow": "no answer within 0.3 s", "refuses": "it answers 403", "redirects": "it answers 302",
               "nobody": "it refuses the connection"}  # fmt: skip
    if reason := reasons.get(receiver.manner):
        assert [event for event, _, why in events_of(run.folder) if why == reason] == ["best", "finished"]
        assert warnings[0] == (
            f"notify: word of `best` of run {run.folder.run_id} did not reach env:SOME_HOOK ({reason})."
        )
    else:  # it has the message, and its reply is not read
        assert not warnings and len(receiver.got) == 2
    assert all(TOKEN not in text and str(receiver.server_port) not in text for text in warnings)
    assert TOKEN.encode() not in everything_below(run.home.root)


@pytest.mark.parametrize("receiver", ["slow"], indirect=True)
def test_the_end_waits_a_bounded_time(run, receiver, monkeypatch):
    monkeypatch.setattr(notifications, "END_WAIT", 0.1)
    warnings = []
    with RunNotifier(run.folder, EVERY, warnings.append) as notifier:
        notifier.offer("finished")
    assert len(warnings) == 1 and "given up 0.1 s after the end" in warnings[0]
    assert events_of(run.folder) == [("finished", "env:SOME_HOOK", "given up 0.1 s after the end")]
    wait_for(lambda: receiver.got)  # begun later, its sender would read the address of the next test's receiver


def test_a_whole_run_tells_of_its_end_and_shows_no_address(run_home, receiver, capfd):
    result = train(tiny(training__steps=2, notify=[{"on": ["finished", "failed"], "to": "env:SOME_HOOK"}]), local=True)
    assert [each["event"] for each in receiver.got] == ["finished"] and receiver.got[0]["step"] == 2
    assert receiver.got[0]["run_id"] == result.run_id
    said = "".join(capfd.readouterr())
    assert TOKEN.encode() not in everything_below(run_home.root) and TOKEN not in said
    assert hide(f"to {receiver.address}") == "to ***"


def test_a_variable_that_is_unset_ends_a_new_run_and_is_a_warning_of_a_resumed_one(run_home, monkeypatch):
    monkeypatch.delenv("SOME_HOOK", raising=False)
    num = len(list(run_home.runs.iterdir()))
    spec = tiny(name="silent", training__steps=2, notify=[{"on": ["finished"], "to": "env:SOME_HOOK"}])
    with pytest.raises(
        UserError, match=r"^notify\.0\.to=env:SOME_HOOK names the environment variable SOME_HOOK: it is"
    ):
        train(spec, local=True)
    assert len(list(run_home.runs.iterdir())) == num
    warnings = []
    check_receivers(spec.notify, True, warnings.append)
    assert len(warnings) == 1 and "it is not set; export it, or leave `notify` out" in warnings[0]


@pytest.mark.parametrize("address", [f"https://user:{TOKEN}@host/x", f"http://host:{TOKEN}/x", "https:///x"])
def test_an_address_that_cannot_be_used_is_refused_without_repeating_it(address, monkeypatch):
    monkeypatch.setenv("SOME_HOOK", f"https://fine.example/x, {address}")
    with pytest.raises(UserError, match=r"SOME_HOOK: address 2 in it is no http\(s\)://HOST/PATH; one") as caught:
        check_receivers(EVERY, False, pytest.fail)
    assert TOKEN not in str(caught.value) and "fine" not in str(caught.value)


def test_what_needs_apprise_says_so_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    problem = notification_sender.problem_of(f"tgram://{TOKEN}/1")
    assert problem == "needs apprise, which is not installed: pip install 'ditlab[notify]'"


def test_apprise_sends_the_picture(run, receiver, monkeypatch):
    pytest.importorskip("apprise")
    monkeypatch.setattr("logging.disable", lambda: None)  # of the sending process alone
    address, content = (
        receiver.address.replace("http://", "json://"),
        notifications.run_message(run.folder, "finished", notifications.ResultReader(run.folder).read()).content(),
    )
    assert notification_sender.problem_of(address) == ""
    assert notification_sender.problem_of(f"nothing://{TOKEN}").startswith("is none that apprise knows")
    assert notification_sender.send_by_apprise(address, content, 9.0) == (notification_sender.SENT, "")
    (got,) = receiver.got
    assert got["title"] == content["title"] and "eval/velocity 2" in got["message"]
    assert [each["filename"] for each in got["attachments"]] == ["samples-00000000.png"]
    receiver.manner = "refuses"
    again = (notification_sender.TRY_AGAIN, "apprise could not send it")
    assert notification_sender.send_by_apprise(address, content, 9.0) == again


def lose(run) -> None:
    """Make the run one whose leading process was killed."""
    with RunNotifier(run.folder, EVERY, pytest.fail):
        owed = run.folder.owed_notification.read_bytes()
    run.folder.owed_notification.write_bytes(owed)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    gone = {**this_process(), "pid": str(dead.pid)}
    dead.wait()
    update_record(run.folder, status="running")
    content = json.loads(run.folder.record.read_text())
    run.folder.record.write_text(json.dumps({**content, "process": gone}))


def test_the_next_command_in_the_home_tells_of_a_lost_run_once(ditlab, run, receiver):
    run.home.ensure()
    lose(run)
    receiver.manner = "refuses"
    said = ditlab("runs")
    assert said.code == 0 and "warning: notify: word of `lost`" in said.err and TOKEN not in said.err
    receiver.manner = "answers"
    receiver.got.clear()
    for _ in range(2):
        assert ditlab("runs").code == 0
    (got,) = receiver.got
    assert got["event"] == "lost" and f"--resume {run.folder.run_id}" in got["next"]
    assert "the process that led it is gone" in got["text"]
    assert [why for _, _, why in events_of(run.folder)] == ["it answers 403", ""]


def test_an_address_that_has_the_word_gets_it_once_and_another_until_a_day_is_over(run, receiver, monkeypatch):
    monkeypatch.setenv("SOME_HOOK", f"{receiver.address},http://127.0.0.1:1/{TOKEN}")
    lose(run)
    home, warnings, owed = Home(run.home.root), [], run.folder.owed_notification
    before = owed.read_bytes()
    with monkeypatch.context() as unset:
        unset.delenv("SOME_HOOK")
        assert send_owed(home, pytest.fail) == 0 and owed.read_bytes() == before  # a day begins with the first try
    for _ in range(3):
        assert send_owed(home, warnings.append) == 0 and owed.exists()
    assert [each["event"] for each in receiver.got] == ["lost"] and len(warnings) == 3
    assert hide(f"to {receiver.address}") == "to ***"
    with owed.open() as held:  # by another command, which sends it
        fcntl.flock(held, fcntl.LOCK_EX)
        assert send_owed(home, pytest.fail) == 0 and owed.exists()
    monkeypatch.setattr(notifications, "call", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # nothing is lost with the process
        send_owed(home, pytest.fail)
    monkeypatch.undo()
    monkeypatch.setenv("SOME_HOOK", f"{receiver.address},http://127.0.0.1:1/{TOKEN}")
    monkeypatch.setattr(notifications.time, "time", lambda: 1e12)
    assert send_owed(home, warnings.append) == 1 and not owed.exists() and len(receiver.got) == 1


def test_a_fault_of_one_message_costs_itself_alone(run, receiver, monkeypatch):
    made, warnings = notifications.run_message, []

    def broken(folder, event, *arguments, **options):
        if event == "lost":
            raise RuntimeError("no message")
        return made(folder, event, *arguments, **options)

    monkeypatch.setattr(notifications, "run_message", broken)
    with RunNotifier(run.folder, EVERY, warnings.append) as notifier:
        notifier.offer("lost")
        notifier.offer("finished")
    assert [each["event"] for each in receiver.got] == ["finished"]
    assert [event for event, _, why in events_of(run.folder) if why] == ["lost"] and "no message" in warnings[0]


def test_a_run_that_trains_or_has_ended_is_not_lost(run, receiver, monkeypatch):
    lose(run)
    update_record(run.folder, status="running")  # by this process
    assert send_owed(Home(run.home.root), pytest.fail) == 0 and run.folder.owed_notification.exists()
    update_record(run.folder, status="failed")
    assert send_owed(Home(run.home.root), pytest.fail) == 0 and not run.folder.owed_notification.exists()
    assert not receiver.got


def test_watch_tells_of_a_loss_and_refuses_where_none_is_awaited(ditlab, run, receiver, monkeypatch):
    run.home.ensure()
    said = ditlab("watch", run.folder.run_id, "--notify", "--no-open")
    assert said.code == 2 and "does not ask for `lost`; leave --notify out" in said.err
    lose(run)
    follow_loss(run.home, run.folder, pytest.fail)
    assert [each["event"] for each in receiver.got] == ["lost"]
    assert os.environ["SOME_HOOK"] == receiver.address
