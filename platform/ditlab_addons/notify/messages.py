"""Messages about events of runs and sweeps, and their sending: webhooks by POST, others by apprise.

No reason that is returned holds any part of an address.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib import error, request
from urllib.parse import urlsplit

from ditlab.home import RunFolder
from ditlab.secrets import hide
from ditlab.storage.plain_files import MIB
from ditlab.tracking.history import RunResults
from ditlab.tracking.journal import main_metric, read_content
from ditlab.tracking.notes import against, baselines, number
from ditlab.tracking.records import read_record
from ditlab_addons.notify.section import NotifyEvent

# they import ray and torch, which a run on one machine and `ditlab runs` need not
if TYPE_CHECKING:
    from ditlab.sweeps.progress import SweepTrials
    from ditlab.sweeps.start import StartedSweep

_LARGEST_PICTURE = 2 * MIB
TIMEOUT = 10.0
"""Seconds for a connection, and for each read, of one try."""
PAUSE = 2.0
"""Seconds before the second try."""


def run_message(
    folder: RunFolder, event: NotifyEvent, reason: str = "", next_command: str | None = None
) -> dict[str, Any]:
    """Make the message about an event of a run. Raises UserError where the run's record cannot be
    read.

    `next_command`: the command that it names, where that is not the event's own.
    """
    record = read_record(folder)
    result, facts = _result_of(folder, main_metric(folder))
    step = max(record.step, facts.get("step", 0))
    lines = [f"step {step:,} of {record.total_steps:,}", result, reason]
    following = {
        "failed": folder.resume_command,
        "lost": f"ditlab runs log {folder.run_id} --follow",
    }
    facts |= {"step": step, "total_steps": record.total_steps}
    if next_command is None:
        next_command = following.get(event, f"ditlab report {folder.run_id}")
    return _content(
        folder,
        event,
        f"{record.name}: {event}",
        lines,
        next_command,
        facts,
        _newest_picture(folder),
    )


def sweep_message(
    started: StartedSweep, trials: SweepTrials, event: NotifyEvent, reason: str
) -> dict[str, Any]:
    """Make the message about an event of a sweep: the best trial so far, beside its own
    beginning.
    """
    folder = started.folder.folder
    leader = trials.leader
    num_trials = max(started.num_trials, len(trials.all))
    lines = [f"{trials.num_ended} of {num_trials} trials have ended"]
    facts: dict[str, Any] = {"trials_ended": trials.num_ended, "trials": num_trials}
    picture = None
    if leader:
        run = started.home.run((leader.members or [leader])[0].run_id)
        metric = started.sweep.metrics[0]
        result, values = _result_of(run, metric)
        lines.append(
            f"best: trial {leader.number} (run {run.run_id}), {result or leader.metrics[metric]}"
        )
        facts |= {**values, "best_run": run.run_id}
        picture = _newest_picture(run)
    next_command = f"ditlab report {folder.run_id}"
    if event == "failed":
        next_command = f"ditlab tune --resume {folder.run_id}"
    return _content(
        folder,
        event,
        f"{started.sweep.name}: {event}",
        [*lines, reason],
        next_command,
        facts,
        picture,
    )


def _content(
    folder: RunFolder,
    event: NotifyEvent,
    title: str,
    lines: Sequence[str],
    next_command: str,
    facts: Mapping[str, Any],
    picture: Path | None,
) -> dict[str, Any]:
    """Return the fields that are sent, without secrets: `text` has all, the others are for
    programs.
    """
    place = f"run {folder.run_id} on {socket.gethostname()}, DITLAB_HOME={folder.path.parents[1]}"
    samples = f"samples: {picture}" if picture else ""
    text = "\n".join(filter(None, [*lines, samples, place, f"next: {next_command}"]))
    return {
        "event": event,
        "title": hide(title)[:200],
        "text": hide(text),
        "run_id": folder.run_id,
        "next": next_command,
        "picture": str(picture or ""),
        **facts,
    }


def _result_of(folder: RunFolder, metric: str) -> tuple[str, dict[str, Any]]:
    """Return a clause on a run's metric beside what it compares with, and step and value as
    fields.
    """
    results = RunResults()
    with suppress(OSError):
        results.load(read_content(folder.journal))
    span = results.get(metric)
    if not span:
        return "", {}
    clauses = [f"{metric} {number(span.last.value)} at step {span.last.step:,}", *against(span)]
    clauses += [f"{word} {number(value)}" for word, value in baselines(metric, results).items()]
    value = span.last.value if math.isfinite(span.last.value) else None
    return "; ".join(clauses), {"metric": metric, "value": value, "step": span.last.step}


def _newest_picture(folder: RunFolder) -> Path | None:
    """Return a run's newest picture of samples; None where there is none, or it is too large to be
    sent.
    """
    found = max(folder.media.glob("samples-*.png"), default=None)
    if found and found.stat().st_size <= _LARGEST_PICTURE:
        return found
    return None


def addresses(variable: str) -> list[str]:
    """Return the addresses in an environment variable, which whitespace or commas part."""
    text = os.environ.get(variable, "").strip()
    return [each for each in re.split(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.-]*://)", text) if each]


def problem_of(address: str) -> str:
    """Return why nothing can be sent to an address, found without calling it; empty where nothing
    is known.
    """
    if _is_webhook(address):
        if _is_whole(address):
            return ""
        return "is no http(s)://HOST/PATH without a user's name"
    try:
        import apprise
    except ImportError:
        return "needs apprise, which is not installed: pip install 'ditlab[notify]'"
    logging.getLogger("apprise").disabled = True  # its warnings hold addresses
    is_known = apprise.Apprise().add(address)
    if is_known:
        return ""
    return "is none that apprise knows (https://appriseit.com/services)"


def send(variable: str, message: Mapping[str, Any]) -> str:
    """Send a message to every address in an environment variable, with a second try where the first
    failed.

    Return why some have not got it; empty where each has.
    """
    reasons = []
    for place, address in enumerate(addresses(variable), 1):
        send_to = _post if _is_webhook(address) else _send_by_apprise
        reason = send_to(address, message)
        if reason:
            time.sleep(PAUSE)
            reason = send_to(address, message)
        if reason:
            reasons.append(f"address {place}: {reason}")
    return "; ".join(reasons)


def _is_webhook(address: str) -> bool:
    return address.lower().startswith(("http://", "https://"))


def _is_whole(address: str) -> bool:
    try:
        found = urlsplit(address)
        return bool(found.hostname) and "@" not in found.netloc and found.port != 0
    except ValueError:
        return False


def _post(address: str, message: Mapping[str, Any]) -> str:
    """Send a message to a webhook as JSON. The body of the reply is not read."""
    headers = {"Content-Type": "application/json", "User-Agent": "ditlab"}
    call = request.Request(address, json.dumps(message).encode(), headers, method="POST")
    try:
        request.urlopen(call, timeout=TIMEOUT).close()
    except error.HTTPError as refusal:
        refusal.close()
        return f"it answers {refusal.code}"
    except Exception as fault:  # their texts may hold the address
        return type(getattr(fault, "reason", fault)).__name__
    return ""


def _send_by_apprise(address: str, message: Mapping[str, Any]) -> str:
    """Send a message with its picture by apprise, which gives no reason."""
    import apprise

    logging.getLogger("apprise").disabled = True  # its warnings hold addresses
    receiver = apprise.Apprise()
    receiver.add(address)
    is_sent = receiver.notify(
        body=message["text"], title=message["title"], attach=message["picture"] or None
    )
    return "" if is_sent else "apprise could not send it"
