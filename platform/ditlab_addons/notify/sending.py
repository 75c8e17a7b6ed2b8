"""Sending of a message to the addresses of an environment variable: webhooks by POST, others by apprise.

No reason that is returned holds any part of an address. apprise is imported here alone.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib import error, request
from urllib.parse import urlsplit

TIMEOUT = 10.0
"""Seconds for a connection, and for each read."""


def addresses(variable: str) -> list[str]:
    """Return the addresses in an environment variable, which whitespace or commas part."""
    text = os.environ.get(variable, "").strip()
    return [each for each in re.split(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.-]*://)", text) if each]


def problem_of(address: str) -> str:
    """Return why nothing can be sent to an address, found without calling it; empty where nothing is known."""
    if _is_webhook(address):
        return "" if _is_whole(address) else "is no http(s)://HOST/PATH without a user's name"
    try:
        import apprise
    except ImportError:
        return "needs apprise, which is not installed: pip install 'ditlab[notify]'"
    logging.getLogger("apprise").disabled = True  # its warnings hold addresses
    is_known = apprise.Apprise().add(address)
    return "" if is_known else "is none that apprise knows (https://appriseit.com/services)"


def send(variable: str, message: Mapping[str, Any]) -> str:
    """Send a message to every address in an environment variable; return why some have not got it, empty for none."""
    reasons = []
    for number, address in enumerate(addresses(variable), 1):
        reason = _post(address, message) if _is_webhook(address) else _send_by_apprise(address, message)
        if reason:
            reasons.append(f"address {number}: {reason}")
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
    """Send a message with its picture by apprise, which tells of no reason."""
    import apprise

    logging.getLogger("apprise").disabled = True  # its warnings hold addresses
    receiver = apprise.Apprise()
    receiver.add(address)
    is_sent = receiver.notify(body=message["text"], title=message["title"], attach=message["picture"] or None)
    return "" if is_sent else "apprise could not send it"
