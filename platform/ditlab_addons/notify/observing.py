"""Observers of runs and sweeps that send messages about their events, never in the way of a step.

A daemon thread makes and sends them. What became of each is an event of the run (`ditlab runs log`), which names the
environment variable and never the address.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ditlab.errors import UserError, first_line
from ditlab.home import RunFolder
from ditlab.runs.events import add_event
from ditlab.runs.observers import ObserverMaker, RunEnd, RunObserver
from ditlab.secrets import hide, hide_variable
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep import Sweep
from ditlab.tracking.journal import main_metric
from ditlab_addons.notify.messages import ResultReader, run_message, sweep_message
from ditlab_addons.notify.section import Notification, NotifyEvent
from ditlab_addons.notify.sending import addresses, problem_of, send

if TYPE_CHECKING:  # they import ray and torch
    from ditlab.sweeps.progress import SweepTrials
    from ditlab.sweeps.start import StartedSweep
    from ditlab.training.reporting import TrainingProgress

INTERVAL = 1800.0
"""Least seconds between two messages of `best`, and between two of a lost worker."""
LOOK = 5.0
"""Seconds between looks for a better value in the journal, and at a run that is watched."""
END_WAIT, LEAST_WAIT = 30.0, 1.0
"""Seconds for which the end of a run waits for the message about it, and for other messages."""
_MOST_WAITING = 16
_REPEATED = frozenset({"best", "lost"})
_LOST = frozenset({"lost_worker", "lost_node", "hung_worker", "preempted", "node_out_of_memory"})
"""Values of `FailureKind`, whose module imports torch, for a worker or node that is gone."""


def observe_run(experiment: Experiment, is_resumed: bool, warn: Callable[[str], None]) -> ObserverMaker | None:
    """Return what makes the observer of a run; None where its spec asks for no message.

    Raises UserError for addresses that cannot be used.
    """
    notify: Sequence[Notification] = getattr(experiment, "notify", ())
    check_addresses(notify, is_resumed, warn)
    return (lambda launch: RunNotifier(launch.folder, notify, warn)) if notify else None


def observe_sweep(sweep: Sweep, is_resumed: bool, warn: Callable[[str], None]) -> ObserverMaker | None:
    """Return what makes the observer of a sweep, as `observe_run`."""
    notify: Sequence[Notification] = getattr(sweep, "notify", ())
    check_addresses(notify, is_resumed, warn)
    return (lambda started, trials: SweepNotifier(started, trials, notify, warn)) if notify else None


def check_addresses(notify: Sequence[Notification], is_resumed: bool, warn: Callable[[str], None]) -> None:
    """Raise UserError for a variable that is unset, and an address that cannot be used, without repeating it; calls
    none. For a run that is resumed it is a warning: it goes on without messages."""
    for place, each in enumerate(notify):
        hide_variable(each.variable)
        problems = [(number, problem_of(address)) for number, address in enumerate(addresses(each.variable), 1)]
        problem = "; ".join(f"address {number} in it {why}" for number, why in problems if why)
        if not problems:
            problem = "it is not set; export it, or leave `notify` out (--set notify=[])"
        if not problem:
            continue
        sentence = f"notify.{place}.to={each.to} names the environment variable {each.variable}: {problem}."
        if not is_resumed:
            raise UserError(sentence)
        warn(sentence)


class Notifier(RunObserver):
    """Sender of the messages about one run or sweep."""

    def __init__(self, folder: RunFolder, notify: Sequence[Notification], warn: Callable[[str], None]) -> None:
        """`warn` is called by another thread too."""
        self.folder = folder
        self._notify = notify
        self._warn = warn
        self._waiting: queue.SimpleQueue[tuple[NotifyEvent, str] | None] = queue.SimpleQueue()
        self._offered_at: dict[NotifyEvent, float] = {}
        self._unsent: list[NotifyEvent] = []
        """Events of which no message has been sent or given up."""
        self._is_over = False
        self._thread = threading.Thread(target=self._send_all, name="ditlab-notify", daemon=True)

    def message(self, event: NotifyEvent, reason: str) -> dict[str, Any]:
        """Make the message about an event."""
        raise NotImplementedError

    def look(self) -> None:
        """Look for events, every few seconds."""

    def offer(self, event: NotifyEvent, reason: str = "") -> bool:
        """Have an event sent; return False where nobody asks for it, or it was sent within `INTERVAL`. Never waits."""
        now = time.monotonic()
        is_too_soon = event in _REPEATED and now - self._offered_at.get(event, -math.inf) < INTERVAL
        if is_too_soon or not self._variables(event) or self._waiting.qsize() >= _MOST_WAITING:
            return False
        self._offered_at[event] = now
        self._unsent.append(event)
        self._waiting.put((event, reason))
        return True

    def began(self) -> None:
        """Begin to send; what was measured before is what later values are compared with."""
        self.look()
        self._thread.start()

    def ended(self, end: RunEnd) -> None:
        """Send the last message, and wait a bounded time for what is still to be sent."""
        if end.status == "failed":
            self.offer("diverged" if end.failure == "diverged" else "failed", end.reason)
        elif end.status != "interrupted":
            self.offer("finished", end.reason)
        self._waiting.put(None)
        tells_of_end = any(event not in _REPEATED for event in self._unsent)
        wait = END_WAIT if tells_of_end else min(END_WAIT, LEAST_WAIT)
        self._thread.join(wait)
        self._is_over = True
        for event in self._unsent:
            self._report(event, f"given up {wait:g} s after the end", self._variables(event))

    def _variables(self, event: NotifyEvent) -> list[str]:
        """Names of the environment variables whose addresses get an event."""
        return list(dict.fromkeys(each.variable for each in self._notify if event in each.on))

    def _send_all(self) -> None:
        wait = LOOK if self._variables("best") else None
        while True:
            try:
                found = self._waiting.get(timeout=wait)
            except queue.Empty:
                try:
                    self.look()
                except Exception as error:  # the other events are still to be sent
                    wait = None
                    self._report("best", f"{type(error).__name__}: {first_line(error)}", self._variables("best"))
                continue
            if found is None:
                return
            self._send(*found)

    def _send(self, event: NotifyEvent, reason: str) -> None:
        variables = self._variables(event)
        try:
            message = self.message(event, reason)
            failures = [send(variable, message) for variable in variables]
        except Exception as error:  # the next messages are still to be sent
            failures = [first_line(error)] * len(variables)
        if self._is_over:
            return
        self._unsent.remove(event)
        for variable, failure in zip(variables, failures, strict=True):
            self._report(event, failure, [variable])

    def _report(self, event: NotifyEvent, failure: str, variables: Sequence[str]) -> None:
        for variable in variables:
            report(self.folder, event, variable, failure, self._warn)


class RunNotifier(Notifier):
    """Sender of the messages about one run."""

    def __init__(self, folder: RunFolder, notify: Sequence[Notification], warn: Callable[[str], None]) -> None:
        super().__init__(folder, notify, warn)
        self._progress: TrainingProgress | None = None
        self._reader = ResultReader(folder)
        self._best = math.inf
        """Lowest value of the main metric that a message told of, or that the run had before."""
        self._is_first_look = True

    def message(self, event: NotifyEvent, reason: str) -> dict[str, Any]:
        """Make the message about an event, with the results so far."""
        return run_message(self.folder, event, self._reader.read(), reason, self._progress)

    def progressed(self, progress: TrainingProgress) -> None:
        """Keep the latest progress."""
        self._progress = progress

    def look(self) -> None:
        """Offer `best` where the main metric is below all its values so far; a first value is compared with."""
        span = self._reader.read().get(main_metric(self.folder)) if self._variables("best") else None
        if span and self._best == math.inf:
            self._best = span.low.value if self._is_first_look else span.first.value
        if span and span.low.value < self._best and self.offer("best"):
            self._best = span.low.value
        self._is_first_look = False

    def attempt_failed(self, tags: Mapping[str, str]) -> None:
        """Offer `lost` where a worker or node is gone."""
        if tags.get("ditlab.failure") in _LOST:
            self.offer("lost", f"{tags['ditlab.failure'].replace('_', ' ')}: {tags.get('ditlab.failure_message', '')}")


class SweepNotifier(Notifier):
    """Sender of the messages about a sweep; its trials send none."""

    def __init__(
        self, started: StartedSweep, trials: SweepTrials, notify: Sequence[Notification], warn: Callable[[str], None]
    ) -> None:
        super().__init__(started.folder.folder, notify, warn)
        self._started = started
        self._trials = trials
        self._leader = trials.leader

    def trials_ended(self) -> None:
        """Offer `best` where a trial has taken the place of the best one before."""
        before = self._leader
        self._leader = self._trials.leader
        if before and self._leader and self._leader.number != before.number:
            self.offer("best")

    def message(self, event: NotifyEvent, reason: str) -> dict[str, Any]:
        """Make the message about an event, with the best trial so far."""
        return sweep_message(self._started, self._trials, event, reason)


def report(folder: RunFolder, event: NotifyEvent, variable: str, failure: str, warn: Callable[[str], None]) -> None:
    """Record what became of a message, and warn of a `failure`, which is empty where it was sent."""
    failure = hide(failure)
    state = f"not sent ({failure})" if failure else "sent"
    with suppress(OSError):
        add_event(folder, "notification", f"notified of {event} by env:{variable}, {state}")
    if failure:
        warn(f"notify: word of `{event}` of run {folder.run_id} did not reach env:{variable} ({failure}).")
