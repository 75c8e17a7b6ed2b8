"""Requests to a run in training (`ditlab ask`): who asks posts them, and the run's first worker
answers them.

The worker's part is `ditlab.runs.reporter.TrackedRequests`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ditlab.home import RunFolder
from ditlab.receipts.records import STOP_VERB
from ditlab.training.inbox import Inbox, Request

MAX_KEPT = 100
"""Newest requests whose answers are kept."""


@dataclass
class RequestAnswer:
    """Answer to a request, or how far it has come."""

    number: int
    verb: str
    status: Literal["done", "not done", "open"] = "done"
    step: int = 0
    """Step after which it was done, or that the run had come to."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metrics of an evaluation, under their MLflow names; None for NaN and infinities."""
    files: list[str] = field(default_factory=list)
    """Paths of a grid of samples: picture, text, captions."""
    checkpoint: str = ""
    """Path or URI."""
    message: str = ""
    """Sentence on why it was not done."""


def post_request(folder: RunFolder, verb: str) -> Request:
    """Post a request, or return the open one that asks for the same. Raises OSError where the disk
    refuses.
    """
    inbox = Inbox(folder.requests)
    for request in open_requests(folder):
        if request.verb == verb:
            return request
    known = [*inbox.listed()]
    number = 1
    if known:
        number = known[-1].number + 1
    request = Request(number, verb)
    inbox.post(request)
    for old in known[:-MAX_KEPT]:
        inbox.remove(old)
    return request


def open_requests(folder: RunFolder) -> list[Request]:
    """Return the requests without an answer, the oldest first."""
    return [
        request
        for request, is_answered in Inbox(folder.requests).listed().items()
        if not is_answered
    ]


def withdraw_stops(folder: RunFolder) -> None:
    """Withdraw open requests to stop the run: whoever starts it again wants it to go on."""
    for request in open_requests(folder):
        if request.verb == STOP_VERB:
            Inbox(folder.requests).remove(request)
