"""Word of a run or a sweep to people (`notify`): messages about its events, never in the way of a step.

The process that leads the run makes and sends them in a daemon thread, and each address is called by a process of its
own (`ditlab.runs.notification_sender`). What was sent, and what could not be, is a line of `notifications.jsonl` in the
run's folder, which names the environment variable and never the address. Where the leading process is killed, the next
command in the home sends the word of its loss. Imports no torch.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.progress import ignore
from ditlab.reports.formatting import format_clock
from ditlab.runs.locks import is_locked, running_state
from ditlab.runs.notification_sender import FAILED, ORDER, SENT, TRY_AGAIN, addresses
from ditlab.secrets import hide, hide_variable
from ditlab.spec.engine import Notification, NotifyEvent
from ditlab.storage.files import write_whole
from ditlab.storage.plain_files import MIB, open_for_append, open_regular_file, read_plain
from ditlab.tracking.history import RESULT_PREFIXES, RunResults
from ditlab.tracking.journal import (
    LARGEST_JOURNAL,
    LONGEST_LINE,
    all_metrics,
    current_time,
    main_metric,
    parse_record,
)
from ditlab.tracking.notes import against, baselines, number
from ditlab.tracking.records import read_record

if TYPE_CHECKING:
    from ditlab.training.reporting import TrainingProgress  # imports torch, which `ditlab runs` needs not

INTERVAL = 1800.0
"""Least seconds between two messages of `best`, and between two of a lost worker."""
LOOK = 5.0
"""Seconds between looks for a better value in the journal."""
TIMEOUT, LIMIT = 10.0, 20.0
"""Seconds for a connection and for each read; after which a sending process ends."""
PAUSES = (2.0, 8.0)
"""Seconds before a second and a third try."""
END_WAIT, LEAST_WAIT = 30.0, 1.0
"""Seconds for which the end of a run waits for the word of it, and for other messages."""
OWED_FOR, OWED_LOOK = 86_400.0, 60.0
"""Seconds for which the word of a loss is tried again, and between the tries of `watch --notify`."""
_MOST_WAITING = 16
_REPEATED = ("best", "lost")
_LARGEST_PICTURE = 2 * MIB
_SENDER = Path(__file__).with_name("notification_sender.py")
_RESULT = re.compile(rf'"(?:{"|".join(RESULT_PREFIXES)})'.encode())
_LOST = frozenset({"lost_worker", "lost_node", "hung_worker", "preempted", "node_out_of_memory"})
"""Values of `FailureKind`, whose module imports torch, for a worker or node that is gone."""


class ResultReader:
    """Results of a run's evaluations from its journal, of which each `read` parses the new lines that hold any."""

    def __init__(self, folder: RunFolder) -> None:
        self.results = RunResults()
        self._journal, self._end = folder.journal, 0

    def read(self) -> RunResults:
        """Read on; a journal that is not there, or cannot be read, has nothing new."""
        with suppress(OSError), open_regular_file(self._journal, LARGEST_JOURNAL) as file:
            file.seek(self._end)
            while line := file.readline(LONGEST_LINE):
                if not line.endswith(b"\n") and len(line) < LONGEST_LINE:
                    break  # in writing
                self._end += len(line)
                record = parse_record(line) if _RESULT.search(line) else None
                if record and record["kind"] == "metrics":
                    self.results.add_step(record["step"], dict(all_metrics(record)), record["time"])
        return self.results


@dataclass(frozen=True)
class Message:
    """One message, as the receivers get it."""

    event: NotifyEvent
    title: str
    lines: Sequence[str]
    """Result, reason, time left; empty ones are left out."""
    folder: RunFolder
    """Folder of the run, or of the sweep."""
    following: str
    """Next command to type."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a webhook's JSON."""
    picture: Path | None = None
    """Samples: attached by apprise where the service takes files; a webhook gets the path."""

    def content(self) -> dict[str, Any]:
        """Return the fields that are sent, without secrets: `text` has all, the others are for programs."""
        place = f"run {self.folder.run_id} on {socket.gethostname()}, DITLAB_HOME={self.folder.path.parents[1]}"
        samples = f"samples: {self.picture}" if self.picture else ""
        lines = filter(None, [*self.lines, samples, place, f"next: {self.following}"])
        return {
            "event": self.event, "title": hide(self.title)[:200], "text": hide("\n".join(lines)),
            "run_id": self.folder.run_id, "next": self.following, "picture": str(self.picture or ""), **self.facts,
        }  # fmt: skip


def result_of(folder: RunFolder, results: RunResults, metric: str = "") -> tuple[str, dict[str, Any]]:
    """Return a clause on a run's main metric, or another, beside what it compares with, and the values as fields."""
    name = metric or main_metric(folder)
    if not (span := results.get(name)):
        return "", {}
    text = "; ".join(
        [
            f"{name} {number(span.last.value)} at step {span.last.step:,}",
            *against(span),
            *(f"{word} {number(value)}" for word, value in baselines(name, results).items()),
        ]
    )
    values = {"value": span.last.value, "first": span.first.value, "lowest": span.low.value}
    finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
    return text, {"metric": name, **finite}


def newest_picture(folder: RunFolder) -> Path | None:
    """Return a run's newest picture of samples; None where there is none, or it is too large to be sent."""
    found = max(folder.media.glob("samples-*.png"), default=None)
    return found if found and found.stat().st_size <= _LARGEST_PICTURE else None


def run_message(
    folder: RunFolder, event: NotifyEvent, results: RunResults, reason: str = "",
    progress: TrainingProgress | None = None, following: str = "",
) -> Message:  # fmt: skip
    """Make the message about an event of a run. Raises UserError where the run's record cannot be read.

    `following` is the next command; empty: what fits the event.
    """
    record, run_id = read_record(folder), folder.run_id
    result, facts = result_of(folder, results)
    step = max([record.step, progress.step if progress else 0, *(span.last.step for span in results.values())])
    titles = {"best": "better than before", "lost": "lost a worker", "failed": "failed"}
    left = progress.seconds_left if progress and event == "best" else None
    lines = [
        f"step {step:,} of {record.total_steps:,}" + (f", {format_clock(left)} left" if left is not None else ""),
        result,
        reason,
    ]
    commands = {"failed": folder.resume_command, "best": f"ditlab watch {run_id}",
                "lost": f"ditlab runs log {run_id} --follow"}  # fmt: skip
    facts |= {"step": step, "total_steps": record.total_steps, "seconds_left": left}
    title = f"{record.name}: {titles.get(event, event)}"
    following = following or commands.get(event, f"ditlab report {run_id}")
    return Message(event, title, lines, folder, following, facts, newest_picture(folder))


class Notifier:
    """Sender of the messages about one run or sweep. Use as a context manager around its life.

    An exception that leaves the block is the event `failed`, or `diverged`; an interruption is none. The end waits a
    bounded time for what is still to be sent.
    """

    def __init__(
        self, folder: RunFolder, notify: Sequence[Notification], warn: Callable[[str], None], resume: str
    ) -> None:
        """`resume` is the command that goes on where this process is killed; `warn` is called by another thread too."""
        self.folder, self._notify, self._warn, self.resume = folder, notify, warn, resume
        self._waiting: queue.SimpleQueue[tuple[NotifyEvent, str] | None] = queue.SimpleQueue()
        self._offered_at: dict[NotifyEvent, float] = {}
        self._unsent: list[NotifyEvent] = []
        """Events of which no message has been sent or given up."""
        self._is_over = self._has_warned = False
        self._thread = threading.Thread(target=self._send_all, name="ditlab-notify", daemon=True)

    def variables(self, event: NotifyEvent) -> list[str]:
        """Names of the environment variables whose addresses get an event."""
        return list(dict.fromkeys(each.variable for each in self._notify if event in each.on))

    def message(self, event: NotifyEvent, reason: str) -> Message:
        """Make the message about an event."""
        raise NotImplementedError

    def look(self) -> None:
        """Look for events, every few seconds."""

    def offer(self, event: NotifyEvent, reason: str = "") -> bool:
        """Have an event sent; return False where nobody asks for it, or it was sent within `INTERVAL`. Never waits."""
        now = time.monotonic()
        is_too_soon = event in _REPEATED and now - self._offered_at.get(event, -math.inf) < INTERVAL
        if is_too_soon or not self.variables(event) or self._waiting.qsize() >= _MOST_WAITING:
            return False
        self._offered_at[event] = now
        self._unsent.append(event)
        self._waiting.put((event, reason))
        return True

    def __enter__(self) -> Self:
        if variables := self.variables("lost"):
            with suppress(OSError):
                content = {"left": dict.fromkeys(variables), "next": self.resume}
                self.folder.owed_notification.write_text(json.dumps(content), encoding="utf-8")
        if self._notify:
            self.look()  # before anything is measured: the values so far are what later ones are compared with
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, KeyboardInterrupt):
            self.offer("diverged" if getattr(error, "kind", "") == "diverged" else "failed", first_line(error))
        with suppress(OSError):
            self.folder.owed_notification.unlink(missing_ok=True)
        if not self._notify:
            return
        self._waiting.put(None)
        wait = END_WAIT if {*self._unsent} - {*_REPEATED} else min(END_WAIT, LEAST_WAIT)
        self._thread.join(wait)
        self._is_over = True
        for event in self._unsent:
            self._report(event, f"given up {wait:g} s after the end")

    def _send_all(self) -> None:
        wait = LOOK if self.variables("best") else None
        while True:
            try:
                found = self._waiting.get(timeout=wait)
            except queue.Empty:
                try:
                    self.look()
                except Exception as error:  # the other events are still to be sent
                    wait = None
                    self._report("best", f"{type(error).__name__}: {first_line(error)}")
                continue
            if found is None:
                return
            event, reason = found
            try:
                content = self.message(event, reason).content()
                failures = {name: send(name, content)[0] for name in self.variables(event)}
            except Exception as error:
                failures = dict.fromkeys(self.variables(event), first_line(error))
            if self._is_over:
                return
            for variable, failure in failures.items():
                self._report(event, failure, variable)
            self._unsent.remove(event)

    def _report(self, event: NotifyEvent, failure: str, variable: str = "") -> None:
        """Record what became of a message, and warn of the first that could not be sent and of those of the end."""
        for name in [variable] if variable else self.variables(event):
            warn = ignore if self._has_warned and event in _REPEATED else self._warn
            self._has_warned = self._has_warned or bool(failure)
            report(self.folder, event, name, failure, warn)


class RunNotifier(Notifier):
    """Sender of the messages about one run."""

    progress: TrainingProgress | None = None
    """Latest progress, which the launcher sets."""

    def __init__(self, folder: RunFolder, notify: Sequence[Notification], warn: Callable[[str], None]) -> None:
        super().__init__(folder, notify, warn, folder.resume_command)
        self._reader, self._best, self._is_first = ResultReader(folder), math.inf, True

    def message(self, event: NotifyEvent, reason: str) -> Message:
        """Make the message about an event, with the results so far."""
        return run_message(self.folder, event, self._reader.read(), reason, self.progress)

    def look(self) -> None:
        """Offer `best` where the main metric is below all its values so far; a first value is compared with."""
        span = self._reader.read().get(main_metric(self.folder)) if self.variables("best") else None
        if span:
            if self._is_first or self._best == math.inf:  # of a resumed run, what it had reached before
                self._best = span.low.value if self._is_first else span.first.value
            if span.low.value < self._best and self.offer("best"):
                self._best = span.low.value
        self._is_first = False

    def attempt_failed(self, tags: Mapping[str, str]) -> None:
        """Offer `lost` where a worker or node is gone; `tags` are those of the failed attempt."""
        if tags.get("ditlab.failure") in _LOST:
            self.offer("lost", f"{tags['ditlab.failure'].replace('_', ' ')}: {tags.get('ditlab.failure_message', '')}")


def check_receivers(notify: Sequence[Notification], is_resumed: bool, warn: Callable[[str], None]) -> None:
    """Raise UserError for a variable that is unset, and an address that cannot be used, without repeating it; calls
    none. For a run that is resumed it is a warning: it goes on without messages."""
    for place, each in enumerate(notify):
        hide_variable(each.variable)
        if num := len(addresses(each.variable)):
            ended = call(each.variable, range(num), None)
            problem = "; ".join(f"address {index + 1} in it {why}" for index, (_, why) in ended.items() if why)
        else:
            problem = "it is not set; export it, or leave `notify` out (--set notify=[])"
        sentence = f"notify.{place}.to={each.to} names the environment variable {each.variable}: {problem}."
        if problem and not is_resumed:
            raise UserError(sentence)
        if problem:
            warn(sentence)


def send(
    variable: str, content: Mapping[str, Any], tries: int = 1 + len(PAUSES), indices: Sequence[int] | None = None
) -> tuple[str, list[int]]:
    """Send a message to every address in an environment variable, or to those with `indices`.

    Return why that failed, without any part of an address, "" where each has it; and the indices of addresses that
    have not got it for sure: what may have arrived is not sent again. Raises OSError where no process starts.
    """
    known = range(len(addresses(variable)))
    left = [index for index in (known if indices is None else indices) if index in known]
    reasons, missed = {} if left else {0: f"{variable} is not set"}, list[int]()
    for attempt in range(tries if left else 0):
        if attempt:
            time.sleep(PAUSES[attempt - 1])
        ended = call(variable, left, content)
        reasons |= {index: why for index, (_, why) in ended.items()}
        missed += [index for index, (code, _) in ended.items() if code == FAILED]
        if not (left := [index for index, (code, _) in ended.items() if code == TRY_AGAIN]):
            break
    several = len(reasons) > 1
    text = "; ".join(f"address {index + 1}: {why}" if several else why for index, why in reasons.items() if why)
    return text, sorted([*missed, *left])


def call(variable: str, indices: Sequence[int], content: Mapping[str, Any] | None) -> dict[int, tuple[int, str]]:
    """Send a message to addresses of a variable, each by a process of its own, or look at them where it is None; return
    an exit code of `notification_sender` and a reason for each. Raises OSError where no process can be started."""
    order = {"variable": variable, "limit": LIMIT, "timeout": TIMEOUT, "message": content}
    environment = {**os.environ, ORDER: json.dumps(order)}
    begun = {
        index: subprocess.Popen(
            [sys.executable, "-P", str(_SENDER), str(index)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True, env=environment, text=True,
        )
        for index in indices
    }  # fmt: skip
    ended = {}
    for index, process in begun.items():
        try:
            reason, _ = process.communicate(timeout=2 * LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            reason, _ = process.communicate()
        if process.returncode in (-signal.SIGALRM, -signal.SIGKILL):
            reason = f"no answer within {LIMIT:g} s"
        elif process.returncode != SENT:
            reason = reason or f"its process ended with {process.returncode}"
        ended[index] = process.returncode, reason
    return ended


def report(folder: RunFolder, event: NotifyEvent, variable: str, failure: str, warn: Callable[[str], None]) -> None:
    """Append a line on a message to a run's `notifications.jsonl`, and warn of a `failure`, empty where it was sent."""
    fields = {"time": current_time(), "event": event, "to": f"env:{variable}", "failure": hide(failure)}
    with suppress(OSError), os.fdopen(open_for_append(folder.notifications), "ab") as file:
        file.write(json.dumps(fields).encode() + b"\n")
    if failure:
        warn(f"notify: word of `{event}` of run {folder.run_id} did not reach env:{variable} ({failure}).")


def send_owed(home: Home, warn: Callable[[str], None], run_id: str = "") -> int:
    """Send the word of runs and sweeps whose leading process is gone without an end, once each, and return how many
    were sent; `run_id` names one, else all.

    To an address that has not got it the word stays owed for a day, and the rest waits for the next command; where its
    variable is not set here, it waits for a command that has it.
    """
    if home.unsettled():  # a copy: the original sends it
        return 0
    num = 0
    for owed in [home.run(run_id).owed_notification] if run_id else sorted(home.runs.glob("*/notify-lost.json")):
        folder = RunFolder(owed.parent)
        with suppress(OSError, ValueError, KeyError, UserError), open_regular_file(owed, MIB) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # another command that sends it has it
            record, content = read_record(folder), json.loads(file.read())
            if is_locked(folder) or owed.stat().st_ino != os.fstat(file.fileno()).st_ino:
                continue  # it is started again, or another command has just sent it
            if record.status != "running":
                owed.unlink()
                continue
            state = running_state(folder, record)
            if state.state != "lost" or not any(map(addresses, content["left"])):
                continue
            reason = f"lost {state.text}: the process that led it is gone"
            message = run_message(folder, "lost", ResultReader(folder).read(), reason, following=content["next"])
            fields, left = replace(message, title=f"{record.name}: lost").content(), dict(content["left"])
            for variable, indices in content["left"].items():
                if addresses(variable):
                    hide_variable(variable)
                    failure, left[variable] = send(variable, fields, 1, indices)
                    report(folder, "lost", variable, failure, warn)
            has_failed = any(left.values())
            left = {variable: indices for variable, indices in left.items() if indices is None or indices}
            if left and time.time() < (until := content.get("until", time.time() + OWED_FOR)):
                write_whole(owed, json.dumps({**content, "left": left, "until": until}).encode())
            else:
                owed.unlink()
                num += 1
            if has_failed:
                return num
    return num


def check_owed(folder: RunFolder) -> None:
    """Raise UserError where no word of a run's loss is owed, or nothing can be sent from here."""
    try:
        variables = json.loads(read_plain(folder.owed_notification, MIB))["left"]
    except (OSError, ValueError, KeyError):
        raise UserError(
            f"--notify: run {folder.run_id} is not in training, or `notify` of its spec does not ask for `lost`; leave "
            "--notify out."
        ) from None
    if (state := running_state(folder, read_record(folder))).state == "unseen":
        raise UserError(f"--notify: run {folder.run_id} was {state.text}; watch it there, or leave --notify out.")
    check_receivers([Notification(on=("lost",), to=f"env:{name}") for name in variables], False, ignore)


def follow_loss(home: Home, folder: RunFolder, warn: Callable[[str], None]) -> None:
    """Look every few seconds whether the process that leads a run is gone, and send the word of it once."""
    has_failed = threading.Event()

    def warned(text: str) -> None:
        has_failed.set()
        warn(text)

    while not send_owed(home, warned, folder.run_id):
        time.sleep(OWED_LOOK if has_failed.is_set() else LOOK)
