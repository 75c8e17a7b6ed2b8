"""Sending of a message to the addresses of an environment variable: webhooks by POST, others by apprise.

No reason that is returned holds any part of an address. apprise is imported here alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib import error, request
from urllib.parse import urlsplit

TIMEOUT = 10.0
"""Seconds for a connection, and for each read."""
PAUSE = 2.0
"""Seconds before the second try."""
_REASONS = {"ConnectionRefusedError": "it refuses the connection", "gaierror": "its host is not known"}
_STATES = {"finished": "success", "best": "info", "lost": "warning"}
"""apprise's word for an event; others are failures."""


@dataclass(frozen=True)
class SendFailure:
    """SendFailure of one try."""

    reason: str
    can_repeat: bool
    """True where the receiver has not got the message for sure, and may take it later."""


def addresses(variable: str) -> list[str]:
    """Return the addresses in an environment variable, which whitespace or commas part."""
    text = os.environ.get(variable, "").strip()
    return [each for each in re.split(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.-]*://)", text) if each]


def problem_of(address: str) -> str:
    """Return why nothing can be sent to an address, found without calling it; empty where nothing is known."""
    if _is_webhook(address):
        with suppress(ValueError):
            found = urlsplit(address)
            if found.hostname and "@" not in found.netloc and found.port != 0:  # raises where it is no number
                return ""
        return "is no http(s)://HOST/PATH; one with a user's name is written json(s)://USER:PASSWORD@HOST/PATH"
    try:
        import apprise
    except ImportError:
        return "needs apprise, which is not installed: pip install 'ditlab[notify]'"
    with _silent_apprise():
        is_known = apprise.Apprise().add(address)
    return "" if is_known else "is none that apprise knows (https://appriseit.com/services)"


def send(variable: str, message: Mapping[str, Any]) -> str:
    """Send a message to every address in an environment variable, with a second try where that can help.

    Return why some have not got it; empty where each has.
    """
    known = addresses(variable)
    if not known:
        return f"{variable} is not set"
    reasons = []
    for number, address in enumerate(known, 1):
        failure = _send_to(address, message)
        if failure and failure.can_repeat:
            time.sleep(PAUSE)
            failure = _send_to(address, message)
        if failure:
            reasons.append(f"address {number}: {failure.reason}" if len(known) > 1 else failure.reason)
    return "; ".join(reasons)


def _is_webhook(address: str) -> bool:
    return address.lower().startswith(("http://", "https://"))


def _send_to(address: str, message: Mapping[str, Any]) -> SendFailure | None:
    return _post(address, message) if _is_webhook(address) else _send_by_apprise(address, message)


class _NoRedirects(request.HTTPRedirectHandler):
    """A redirect would lead the message to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _post(address: str, message: Mapping[str, Any]) -> SendFailure | None:
    """Send a message to a webhook as JSON. The body of the reply is not read."""
    headers = {"Content-Type": "application/json", "User-Agent": "ditlab"}
    call = request.Request(address, json.dumps(message).encode(), headers, method="POST")
    try:
        request.build_opener(_NoRedirects).open(call, timeout=TIMEOUT).close()
    except error.HTTPError as refusal:
        refusal.close()
        return SendFailure(f"it answers {refusal.code}", refusal.code == 429 or refusal.code >= 500)
    except Exception as fault:  # their texts may hold the address
        cause = getattr(fault, "reason", fault)
        if isinstance(cause, TimeoutError):
            return SendFailure(f"no answer within {TIMEOUT:g} s", can_repeat=False)
        name = type(cause).__name__
        return SendFailure(_REASONS.get(name, name), name in _REASONS)
    return None


def _send_by_apprise(address: str, message: Mapping[str, Any]) -> SendFailure | None:
    """Send a message with its picture by apprise, which tells of no reason."""
    import apprise

    begin = time.monotonic()
    state = apprise.NotifyType(_STATES.get(message["event"], "failure"))
    receiver = apprise.Apprise()
    with _silent_apprise():
        is_known = receiver.add(address)
        for service in receiver:
            service.socket_connect_timeout = TIMEOUT
            service.socket_read_timeout = TIMEOUT
        is_sent = is_known and receiver.notify(
            body=message["text"], title=message["title"], notify_type=state, attach=message["picture"] or None
        )
    if is_sent:
        return None
    if time.monotonic() - begin >= TIMEOUT:
        return SendFailure(f"no answer within {TIMEOUT:g} s", can_repeat=False)
    return SendFailure("apprise could not send it", can_repeat=True)


@contextmanager
def _silent_apprise() -> Iterator[None]:
    """Silence apprise's logger in the block: its warnings hold addresses."""
    logger = logging.getLogger("apprise")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
