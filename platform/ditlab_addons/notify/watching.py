"""The flag `--notify` of `ditlab watch`: the message that the process of a run is gone, which it
cannot send itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ditlab.errors import UserError
from ditlab.home import RunFolder
from ditlab.runs.locks import running_state
from ditlab.spec.files import load_recorded_experiment
from ditlab.tracking.records import read_record
from ditlab_addons.notify.messages import run_message
from ditlab_addons.notify.observing import Notifier, check_addresses
from ditlab_addons.notify.section import Notification

CHECK_INTERVAL = 5.0
"""Seconds between two checks of the process."""


def watch_loss(folder: RunFolder, say: Callable[[str], None]) -> None:
    """Send `lost` once the process that leads a run in training is gone without an end; returns at
    once.

    Raises UserError where the spec asks for no such message, or nothing can be sent from here.
    """
    notify: Sequence[Notification] = getattr(load_recorded_experiment(folder.spec), "notify", ())
    wanted = [each for each in notify if "lost" in each.on]
    record = read_record(folder)
    state = running_state(folder, record)
    if not wanted or record.status != "running" or state.state == "lost":
        raise UserError(
            f"--notify: run {folder.run_id} is not in training, or `notify` of its spec does "
            "not ask for `lost`; leave --notify out."
        )
    if state.state == "unseen":
        raise UserError(
            f"--notify: run {folder.run_id} was {state.text}; watch it there, or leave "
            "--notify out."
        )
    check_addresses(wanted, False, say)
    notifier = Notifier(
        folder,
        wanted,
        say,
        lambda event, reason: run_message(folder, event, reason, folder.resume_command),
    )
    threading.Thread(target=_await_loss, args=(folder, notifier), daemon=True).start()


def _await_loss(folder: RunFolder, notifier: Notifier) -> None:
    while True:
        time.sleep(CHECK_INTERVAL)
        with suppress(UserError):  # a record in writing
            record = read_record(folder)
            if record.status != "running":
                return
            state = running_state(folder, record)
            if state.state == "lost":
                break
    notifier.offer("lost", f"lost {state.text}: the process that led it is gone")
