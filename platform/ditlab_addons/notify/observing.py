"""Observers of runs and sweeps that send messages about their events, never in the way of a step.

A daemon thread makes and sends each. What became of it is an event of the run (`ditlab runs log`),
which names the environment variable and never the address.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ditlab.errors import UserError, first_line
from ditlab.home import RunFolder
from ditlab.runs.events import add_event
from ditlab.runs.observers import ObserverMaker, RunEnd, RunObserver
from ditlab.secrets import hide, hide_variable
from ditlab.spec.experiment import Experiment
from ditlab.spec.sweep import Sweep
from ditlab_addons.notify.messages import addresses, problem_of, run_message, send, sweep_message
from ditlab_addons.notify.section import Notification, NotifyEvent

END_WAIT = 30.0
"""Seconds for which the end of a run waits for each of its messages."""
_LOST = frozenset({"lost_worker", "lost_node", "hung_worker", "preempted", "node_out_of_memory"})
"""Values of `FailureKind`, whose module imports torch, for a worker or node that is gone."""


def observe_run(
    experiment: Experiment, is_resumed: bool, warn: Callable[[str], None]
) -> ObserverMaker | None:
    """Return what makes the observer of a run; None where its spec asks for no message.

    Raises UserError for addresses that cannot be used.
    """
    notify: Sequence[Notification] = getattr(experiment, "notify", ())
    check_addresses(notify, is_resumed, warn)
    if not notify:
        return None
    return lambda launch: Notifier(
        launch.folder, notify, warn, lambda event, reason: run_message(launch.folder, event, reason)
    )


def observe_sweep(
    sweep: Sweep, is_resumed: bool, warn: Callable[[str], None]
) -> ObserverMaker | None:
    """Return what makes the observer of a sweep, as `observe_run`."""
    notify: Sequence[Notification] = getattr(sweep, "notify", ())
    check_addresses(notify, is_resumed, warn)
    if not notify:
        return None
    return lambda started, trials: Notifier(
        started.folder.folder,
        notify,
        warn,
        lambda event, reason: sweep_message(started, trials, event, reason),
    )


def check_addresses(
    notify: Sequence[Notification], is_resumed: bool, warn: Callable[[str], None]
) -> None:
    """Raise UserError for a variable that is unset, and an address that cannot be used, without
    repeating it; calls none. For a run that is resumed it is a warning: it goes on without
    messages."""
    for place, each in enumerate(notify):
        hide_variable(each.variable)
        problems = [
            (number, problem_of(address))
            for number, address in enumerate(addresses(each.variable), 1)
        ]
        problem = "; ".join(f"address {number} in it {why}" for number, why in problems if why)
        if not problems:
            problem = "it is not set; export it, or leave `notify` out (--set notify=[])"
        if not problem:
            continue
        sentence = (
            f"notify.{place}.to={each.to} names the environment variable {each.variable}: "
            f"{problem}."
        )
        if not is_resumed:
            raise UserError(sentence)
        warn(sentence)


class Notifier(RunObserver):
    """Sender of the messages about one run or sweep, of each event once."""

    def __init__(
        self,
        folder: RunFolder,
        notify: Sequence[Notification],
        warn: Callable[[str], None],
        message: Callable[[NotifyEvent, str], dict[str, Any]],
    ) -> None:
        """`warn` is called by other threads too; `message` makes the message about an event and its
        reason.
        """
        self._folder = folder
        self._notify = notify
        self._warn = warn
        self._message = message
        self._threads: dict[NotifyEvent, threading.Thread] = {}

    def offer(self, event: NotifyEvent, reason: str = "") -> None:
        """Have an event sent where somebody asks for it. Never waits."""
        variables = list(dict.fromkeys(each.variable for each in self._notify if event in each.on))
        if not variables or event in self._threads:
            return
        thread = threading.Thread(target=self._send, args=(event, reason, variables), daemon=True)
        self._threads[event] = thread
        thread.start()

    def attempt_failed(self, tags: Mapping[str, str]) -> None:
        """Offer `lost` where a worker or node is gone."""
        if tags.get("ditlab.failure") in _LOST:
            self.offer(
                "lost",
                f"{tags['ditlab.failure'].replace('_', ' ')}: "
                f"{tags.get('ditlab.failure_message', '')}",
            )

    def ended(self, end: RunEnd) -> None:
        """Send the last message, and wait a bounded time for what is still to be sent."""
        if end.status == "failed":
            self.offer("diverged" if end.failure == "diverged" else "failed", end.reason)
        elif end.status != "interrupted":
            self.offer("finished", end.reason)
        for event, thread in self._threads.items():
            thread.join(END_WAIT)
            if thread.is_alive():
                self._report(event, "its receiver", f"given up {END_WAIT:g} s after the end")

    def _send(self, event: NotifyEvent, reason: str, variables: Sequence[str]) -> None:
        for variable in variables:
            try:
                failure = send(variable, self._message(event, reason))
            except Exception as error:  # a fault of ours costs this message alone
                failure = first_line(error)
            self._report(event, f"env:{variable}", failure)

    def _report(self, event: NotifyEvent, receiver: str, failure: str) -> None:
        """Record what became of a message, and warn of a `failure`, which is empty where it was
        sent.
        """
        failure = hide(failure)
        state = f"not sent ({failure})" if failure else "sent"
        with suppress(OSError):
            add_event(self._folder, "notification", f"notified of {event} by {receiver}, {state}")
        if failure:
            self._warn(
                f"notify: word of `{event}` of run {self._folder.run_id} did not reach "
                f"{receiver} ({failure})."
            )
