"""Whether an MLflow server lets this process in: asked before a client is made. Imports no mlflow."""

import base64
import configparser
import os
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from ditlab.errors import UserError
from ditlab.tracking.address import redact

_LOOK = "/api/2.0/mlflow/experiments/search?max_results=1"
_REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of an account there"
# Ways of MLflow's to authenticate that are not tried here.
_OTHER_WAYS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")


def check_admitted(uri: str, timeout: float = 5.0) -> str | None:
    """The sentence (without its full stop) that says so where the server at `uri` refuses this process's name or
    password; None where it does not, does not answer, or where no server is."""
    if urlsplit(uri).scheme not in ("http", "https") or any(os.environ.get(name) for name in _OTHER_WAYS):
        return None
    return refusal(uri, status(uri, _authorization(), timeout))


def require_admitted(uri: str) -> None:
    """Raises UserError where the server at `uri` refuses this process's name or password."""
    if sentence := check_admitted(uri):
        raise UserError(f"{sentence}.")


def refusal(uri: str, code: int | None) -> str | None:
    """What an HTTP status means, where it means a refusal."""
    if code not in (401, 403):
        return None
    what = "refuses the name or password" if _authorization() else "wants a name and password"
    return f"MLflow at {redact(uri)} {what} ({code}); {_REMEDY}"


def status(uri: str, authorization: str | None, timeout: float = 5.0) -> int | None:
    """The HTTP status of a look at the experiments, None where nothing answers."""
    request = urllib.request.Request(f"{uri.rstrip('/')}{_LOOK}")
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


def basic(name: str, password: str) -> str:
    """The header's value for a name and password."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def _authorization() -> str | None:
    """As MLflow's client finds it: variables, then its file in the user's home."""
    name, password = (os.environ.get(f"MLFLOW_TRACKING_{each}") for each in ("USERNAME", "PASSWORD"))
    kept = configparser.ConfigParser(interpolation=None)
    try:
        kept.read(Path("~/.mlflow/credentials").expanduser())
        name = name or kept.get("mlflow", "mlflow_tracking_username", fallback=None)
        password = password or kept.get("mlflow", "mlflow_tracking_password", fallback=None)
    except (OSError, RuntimeError, UnicodeDecodeError, configparser.Error):
        pass  # MLflow says what it makes of such a file
    if name and password:
        return basic(name, password)
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return f"Bearer {token}" if token else None
