"""Program that sends one message to one address of an environment variable: `python -P FILE INDEX`.

It is a process of its own, so that a receiver that is slow, floods or is not there costs the process that trains no
time, no memory and no lock, whatever a library does. It ends itself after a limit, prints why it failed without any
part of the address, and is run by its path: it needs nothing else of DiTLab. apprise is imported here alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any
from urllib import error, request
from urllib.parse import urlsplit

ORDER = "DITLAB_NOTIFICATION"
"""Environment variable of this process (JSON): `variable`, `limit` and `timeout` in seconds, `message`, null to look at
the address alone."""
SENT, FAILED, SILENT, TRY_AGAIN = 0, 1, 2, 75
"""Exit codes: what is SILENT may have the message, what FAILED or is to TRY_AGAIN has not."""
_MEMORY = 2 << 30
"""Bytes of address space: a reply without end fills no more."""
_REASONS = {"ConnectionRefusedError": "it refuses the connection", "gaierror": "its host is not known"}
_STATES = {"finished": "success", "best": "info", "lost": "warning"}
"""apprise's word for an event; others are failures."""


def addresses(variable: str) -> list[str]:
    """Return the addresses in an environment variable, which whitespace or commas part."""
    text = os.environ.get(variable, "").strip()
    return [each for each in re.split(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.-]*://)", text) if each]


def is_webhook(address: str) -> bool:
    """Return True for an http or https address, which is called without apprise."""
    return address.lower().startswith(("http://", "https://"))


def problem_of(address: str) -> str:
    """Return why nothing can be sent to an address, found without calling it; empty where nothing is known."""
    if is_webhook(address):
        with suppress(ValueError):
            found = urlsplit(address)
            if found.hostname and "@" not in found.netloc and found.port != 0:  # raises where it is no number
                return ""
        return "is no http(s)://HOST/PATH; one with a user's name is written json(s)://USER:PASSWORD@HOST/PATH"
    try:
        import apprise
    except ImportError:
        return "needs apprise, which is not installed: pip install 'ditlab[notify]'"
    return "" if apprise.Apprise().add(address) else "is none that apprise knows (https://appriseit.com/services)"


class NoRedirects(request.HTTPRedirectHandler):
    """Handler that follows no redirect: it would lead the message to another host."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def post(address: str, message: dict[str, Any], timeout: float) -> tuple[int, str]:
    """Send a message to a webhook as JSON; return an exit code and why it failed. The body of the reply is not read."""
    headers = {"Content-Type": "application/json", "User-Agent": "ditlab"}
    call = request.Request(address, json.dumps(message).encode(), headers, method="POST")
    try:
        request.build_opener(NoRedirects).open(call, timeout=timeout)
    except error.HTTPError as refusal:
        return TRY_AGAIN if refusal.code == 429 or refusal.code >= 500 else FAILED, f"it answers {refusal.code}"
    except Exception as fault:  # their texts may hold the address
        cause = getattr(fault, "reason", fault)
        if isinstance(cause, TimeoutError):
            return SILENT, f"no answer within {timeout:g} s"
        name = type(cause).__name__
        return (TRY_AGAIN, _REASONS[name]) if name in _REASONS else (SILENT, name)
    return SENT, ""


def send_by_apprise(address: str, message: dict[str, Any], timeout: float) -> tuple[int, str]:
    """Send a message with its picture by apprise; return an exit code and why it failed.

    apprise tells of no reason: a failure that takes as long as `timeout` is a receiver without an answer.
    """
    import apprise

    logging.disable()  # its warnings hold addresses
    receiver, begin = apprise.Apprise(), time.monotonic()
    is_known = receiver.add(address)
    for service in receiver:
        service.socket_connect_timeout = service.socket_read_timeout = timeout
    state = apprise.NotifyType(_STATES.get(message["event"], "failure"))
    is_sent = is_known and receiver.notify(
        body=message["text"], title=message["title"], notify_type=state, attach=message["picture"] or None
    )
    if not is_sent and time.monotonic() - begin >= timeout:
        return SILENT, f"no answer within {timeout:g} s"
    return (SENT, "") if is_sent else (TRY_AGAIN, "apprise could not send it")


def main() -> None:
    """Send the message, or look at the address alone, and exit with what came of it."""
    order = json.loads(os.environ[ORDER])
    message = order["message"]
    signal.setitimer(signal.ITIMER_REAL, order["limit"])  # SIGALRM ends the process
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    address = addresses(order["variable"])[int(sys.argv[1])]
    if message is None:
        reason = problem_of(address)
        code = FAILED if reason else SENT
    elif is_webhook(address):
        code, reason = post(address, message, order["timeout"])
    else:
        code, reason = send_by_apprise(address, message, order["timeout"])
    sys.stdout.write(reason)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
