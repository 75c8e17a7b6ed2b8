"""Probe of a tracking address before a client is made: does it answer, and accept this process's credentials?

Imports no mlflow.
"""

import base64
import configparser
import os
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from ditlab.errors import UserError
from ditlab.tracking.address import DATABASE_PORTS, redact, scheme_of, sqlite_path

_PROBE = "/api/2.0/mlflow/experiments/search?max_results=1"
_REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of an account there"
# MLflow's other ways to authenticate, which the probe does not try.
_OTHER_WAYS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")
_TIMEOUT = 5.0
"""Seconds for an answer."""


def check_reachable(uri: str, timeout: float = _TIMEOUT) -> str | None:
    """Reason why nothing answers at `uri` within `timeout` seconds; None if something answers.

    A server that answers with an error answers. A SQLite file must exist, as opening it would make it.
    """
    parts = urlsplit(uri)
    scheme = scheme_of(parts)
    if uri == "databricks" or scheme == "databricks":
        return None
    if scheme == "sqlite":
        return None if sqlite_path(uri).is_file() else f"there is no file {sqlite_path(uri)}"
    if scheme in DATABASE_PORTS:
        try:
            socket.create_connection((parts.hostname or "", parts.port or DATABASE_PORTS[scheme]), timeout).close()
        except OSError as error:
            return _reason(error)
        return None
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    try:
        urllib.request.urlopen(f"{bare.rstrip('/')}/health", timeout=timeout).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        return _reason(error)
    return None


def require_reachable(uri: str, timeout: float = _TIMEOUT) -> None:
    """Raise UserError where nothing answers within `timeout` seconds."""
    if reason := check_reachable(uri, timeout):
        raise UserError(
            f"tracking.uri={redact(uri)} does not answer ({reason}); start that MLflow server or correct the address."
        )


def check_access(uri: str, timeout: float = _TIMEOUT) -> str | None:
    """A sentence, without its full stop, if the server at `uri` refuses this process's name or password.

    None if it accepts them or does not answer, and where the address is no server's.
    """
    if urlsplit(uri).scheme not in ("http", "https") or any(os.environ.get(name) for name in _OTHER_WAYS):
        return None
    return refusal_message(uri, probe_status(uri, _authorization(), timeout))


def require_access(uri: str) -> None:
    """Raise UserError where the server at `uri` refuses this process's name or password."""
    if sentence := check_access(uri):
        raise UserError(f"{sentence}.")


def refusal_message(uri: str, status: int | None) -> str | None:
    """A sentence, without its full stop, for an HTTP status that refuses credentials; None for any other status."""
    if status not in (401, 403):
        return None
    what = "refuses the name or password" if _authorization() else "wants a name and password"
    return f"MLflow at {redact(uri)} {what} ({status}); {_REMEDY}"


def probe_status(uri: str, authorization: str | None, timeout: float = _TIMEOUT) -> int | None:
    """HTTP status of a search for experiments; None where nothing answers."""
    request = urllib.request.Request(f"{uri.rstrip('/')}{_PROBE}")
    if authorization:
        request.add_unredirected_header("Authorization", authorization)  # for this server and no other
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, ValueError):
        return None


def basic_authorization(name: str, password: str) -> str:
    """Value of the Authorization header for a name and password."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _authorization() -> str | None:
    """The header's value as MLflow's client finds it: variables, then its file in the user's home."""
    name, password = (os.environ.get(f"MLFLOW_TRACKING_{each}") for each in ("USERNAME", "PASSWORD"))
    kept = configparser.ConfigParser(interpolation=None)
    try:
        kept.read(Path("~/.mlflow/credentials").expanduser())
        name = name or kept.get("mlflow", "mlflow_tracking_username", fallback=None)
        password = password or kept.get("mlflow", "mlflow_tracking_password", fallback=None)
    except (OSError, RuntimeError, UnicodeDecodeError, configparser.Error):
        pass  # MLflow reports such a file itself
    if name and password:
        return basic_authorization(name, password)
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return f"Bearer {token}" if token else None


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    return getattr(cause, "strerror", None) or str(cause)
