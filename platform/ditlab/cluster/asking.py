"""Requests to a run whose home is not shared with who asks: by the cluster's key-value store.

The first worker's desk (`ditlab.runs.requests`) puts a sign of life there, moves what is asked into the run's folder,
and brings the answers back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ditlab.cluster.channel import CHANNEL_ERRORS, KeyValueChannel
from ditlab.errors import UserError, nearest
from ditlab.home import RunFolder
from ditlab.receipts.records import VERBS
from ditlab.runs.requests import POLL_INTERVAL, RequestAnswer, open_sentence, read_answer, write_request

_CHANNEL = "ask"
_SIGN, _REQUEST, _ANSWER = "sign", "request-", "answer-"
_SILENT = 20.0  # seconds without a sign of life after which the wait says so, and ends where the workers took leave
_LOST = 600.0  # seconds without a sign of life after which it ends: lost workers may have to wait for a node


class RequestRelay:
    """Worker's side, for the time of one attempt."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._channel = KeyValueChannel(f"{_CHANNEL}/{folder.run_id}")
        self._count = 0

    def look(self) -> None:
        """Take in what is asked, and bring back what is answered; a store that cannot be reached is tried later."""
        with suppress(*CHANNEL_ERRORS):
            self._count += 1
            self._channel.put(_SIGN, {"name": self._name, "count": self._count})
            for topic in self._channel.topics():
                if topic.startswith(_REQUEST) and (request := self._channel.get(topic)):
                    self._serve(topic, request)

    def close(self) -> None:
        """Bring back the last answers, and remove the sign of life."""
        self.look()
        with suppress(*CHANNEL_ERRORS):
            self._channel.remove(_SIGN)

    def _serve(self, topic: str, request: dict[str, Any]) -> None:
        # The number is kept there: the next attempt knows what an earlier one has taken in.
        if "number" not in request and request["verb"] in VERBS:
            request["number"] = write_request(self._folder, request["verb"]).number
            self._channel.put(topic, request)
        if answer := read_answer(self._folder, request.get("number", 0)):
            self._channel.put(_ANSWER + topic.removeprefix(_REQUEST), asdict(answer))
            self._channel.remove(topic)


def ask_on_cluster(
    run: str, verb: str, wait: float | None, on_wait: Callable[[str], None]
) -> tuple[str, RequestAnswer]:  # fmt: skip
    """Ask a run of the cluster that this process is connected to; return its id and the answer.

    `wait` None waits until the answer is there, says for how long the run's workers have been silent, and ends where
    they have ended. Raises UserError where no worker of such a run is there.
    """
    run_id = _find(run)
    channel, key = KeyValueChannel(f"{_CHANNEL}/{run_id}"), secrets.token_hex(4)
    channel.put(_REQUEST + key, {"verb": verb})
    begin = heard = time.monotonic()
    sign: Any = None
    while True:
        if found := channel.get(_ANSWER + key):
            channel.remove(_ANSWER + key)
            return run_id, RequestAnswer(**found)
        now = time.monotonic()
        if (latest := channel.get(_SIGN)) is not None and latest != sign:
            sign, heard = latest, now
        silence = f"; its workers have given no sign for {now - heard:.0f} s" if now - heard > _SILENT else ""
        on_wait(f"waiting for run {run_id} to {verb}{silence}")
        is_over = now - heard > (_SILENT if latest is None else _LOST)
        if is_over or (wait is not None and now - begin >= wait):
            number = (channel.get(_REQUEST + key) or {}).get("number", 0)
            if not is_over:
                return run_id, RequestAnswer(number, verb, "open", message=open_sentence(run_id, verb, wait or 0))
            channel.remove(_REQUEST + key)
            why = f"run {run_id} has ended, or is without workers{silence}; in its home `ditlab runs` says which."
            return run_id, RequestAnswer(number, verb, "not done", message=why)
        time.sleep(POLL_INTERVAL)


def _find(run: str) -> str:
    """Id of the run in training with this id, prefix or name."""
    channel = KeyValueChannel(_CHANNEL)
    signs = [topic.removesuffix(f"/{_SIGN}") for topic in channel.topics() if topic.endswith(f"/{_SIGN}")]
    names = {run_id: str((channel.get(f"{run_id}/{_SIGN}") or {}).get("name", "")) for run_id in signs}
    found = [run_id for run_id, name in names.items() if run_id.startswith(run) or name == run]
    if len(found) != 1:
        known = nearest(run, [*names, *names.values()]) if not found else f"it names {', '.join(sorted(found))}"
        raise UserError(
            f"RUN={run!r}: this cluster has {'no' if not found else 'no single'} such run in training; {known}."
        )
    return found[0]
