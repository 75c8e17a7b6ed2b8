"""Removal of secrets from text: everything that leaves the process (messages, records, tags, logs)
passes `hide`.
"""

import base64
import json
import os
import re
import sys
import threading
import traceback
from functools import cache
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import quote, quote_plus

MASK = "***"
_MIN_LENGTH = 6  # characters: a shorter value occurs in ordinary words, and protects nothing

# Whole words of a variable's name: TOKEN is one, TOKENIZERS_PARALLELISM has none.
_NAMES = re.compile(
    r"(?:^|_)(?:SECRETS?|PASS|PASSWD|PASSPHRASE|TOKEN|CREDENTIALS?|API_?KEY|ACCESS_KEY|ACCOUNT_KEY|PRIVATE_KEY|PAT|"
    r"CONNECTION_STRING|SAS)(?:_|$)|PASSWORD(?:_|$)",
    re.IGNORECASE,
)
# Endings of variables that hold the location or kind of a secret.
_HARMLESS = re.compile(
    r"_(?:PATH|FILE|DIR|FOLDER|ID|NAME|MODE|TYPE|TTL|URL|URI|ENDPOINT|EXPIRATION)$", re.IGNORECASE
)

# Keys hold slashes, too; a number that ends there is a port.
_USER_INFO = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*://[^\s/?#:@'\"]*):(?!\d+(?:[/?#'\"\s]|$))[^\s?#'\"]*@"
)
_QUERY = re.compile(
    r"([?&][^=&\s'\"]*(?:secret|passw|token|credential|signature|access_?key|account_?key|api_?key)[^=&\s'\"]*=)"
    r"[^&\s'\"]+",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(authorization['\"]?\s*[:=]\s*[bu]?['\"]?\s*(?:basic|bearer)\s+)[^\s'\",]+", re.IGNORECASE
)


_NAMED: set[str] = set()


def hide_variable(name: str) -> None:
    """Hide the value of an environment variable, and each word of it, from now on, whatever the
    variable's name.
    """
    _NAMED.add(name)


def hide(text: str) -> str:
    """Replace secrets in a text by `***`.

    Secrets are values of environment variables with names such as AWS_SECRET_ACCESS_KEY, *_PASSWORD
    and *_TOKEN, passwords inside URLs, keys in their queries, and the words of an Authorization
    header.
    """
    for value in _values():
        text = text.replace(value, MASK)
    return _HEADER.sub(rf"\1{MASK}", hide_in_urls(text))


def hide_in_urls(text: str) -> str:
    """Replace passwords and keys inside URLs by `***`: `postgresql://ann:***@db/mlflow`."""
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\1{MASK}", _USER_INFO.sub(rf"\1:{MASK}@", text))


def raise_hidden(error: BaseException) -> NoReturn:
    """Raise an error, or a RuntimeError with its message if its traceback shows a secret."""
    shown = "".join(traceback.format_exception(error))
    if hide(shown) == shown:
        raise error
    raise RuntimeError(f"{type(error).__name__}: {hide(str(error))}") from None


def hide_tracebacks() -> None:
    """Print uncaught exceptions without secrets from now on, in every thread."""

    def print_hidden(
        kind: Any, error: BaseException | None, trace: TracebackType | None, head: str = ""
    ) -> None:
        sys.stderr.write(hide(head + "".join(traceback.format_exception(kind, error, trace))))

    def print_of_thread(details: threading.ExceptHookArgs) -> None:
        if details.exc_type is not SystemExit:
            head = f"Exception in thread {details.thread.name if details.thread else 'unknown'}:\n"
            print_hidden(details.exc_type, details.exc_value, details.exc_traceback, head)

    sys.excepthook = print_hidden
    threading.excepthook = print_of_thread


@cache  # each line of a journal asks for every variable of the environment
def _names_secret(name: str) -> bool:
    return bool(_NAMES.search(name)) and not _HARMLESS.search(name)


def _values() -> list[str]:
    """Secrets as they may occur in a text, the longest first, as one may contain another."""
    found: set[str] = set()
    name, password = (
        os.environ.get(f"MLFLOW_TRACKING_{each}") for each in ("USERNAME", "PASSWORD")
    )
    if name and password:  # as in a header
        found.add(base64.b64encode(f"{name}:{password}".encode()).decode())
    # several addresses may be parted by commas
    texts = {name: os.environ.get(name, "") for name in _NAMED}
    named = [
        (name, word) for name, text in texts.items() for word in {text, *re.split(r"[\s,]+", text)}
    ]
    for name, value in [*os.environ.items(), *named]:
        if (name in _NAMED or _names_secret(name)) and len(value) >= _MIN_LENGTH:
            # as it is, inside a URL, and escaped as in a `repr` or in JSON
            found |= {
                value,
                quote(value, safe=""),
                quote(value),
                quote_plus(value),
                repr(value)[1:-1],
            }
            found |= {json.dumps(value, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)}
    return sorted(found, key=lambda value: (-len(value), value))
