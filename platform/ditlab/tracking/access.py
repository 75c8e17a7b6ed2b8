"""Tracking addresses: forms, checks, and a probe of answer and credentials before a client. Imports no mlflow."""

import base64
import configparser
import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import absent_part, load_part, named
from ditlab.secrets import hide, hide_in_urls
from ditlab.storage.local import refuse_ray_copy

DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Databases that MLflow can keep runs in, and their usual ports."""
_FORMS = (
    "http://HOST:PORT, https://HOST, sqlite:///PATH.db (four slashes for an absolute path; %25 for % and %3F for ?), "
    "postgresql://USER@HOST/DATABASE, mysql://..., mssql://..., databricks, or null for the database under DITLAB_HOME"
)
_PROBE = "/api/2.0/mlflow/experiments/search?max_results=1"
_REMEDY = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of an account there"
# MLflow's other ways to authenticate, which the probe does not try.
_OTHER_WAYS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")
_TIMEOUT = 5.0
"""Seconds for an answer."""
_LOOPBACK = ("localhost", "127.0.0.1", "127.0.0.0/8", "::1", "[::1]")
"""This machine, as urllib and requests each compare names."""
_LONGEST_ANSWER = 300
"""Characters of a refusal that are quoted."""


def validate_tracking_uri(uri: str, option: str = "tracking.uri") -> str:
    """Return `uri` if it is well-formed. Raises UserError naming the option, its value and the valid forms."""
    try:
        parts = urlsplit(uri)
        scheme = scheme_of(parts)
        has_host = bool(parts.hostname) and parts.port != 0
        path = uri.partition("://")[2]
    except ValueError:  # whose message may show a piece of a password
        scheme = ""
    if scheme == "sqlite":
        # Another driver or a query, which SQLAlchemy would read, would have to be carried to every worker.
        is_valid = parts.scheme in ("sqlite", "sqlite+pysqlite") and path.startswith("/") and "?" not in path
        is_valid = is_valid and path not in ("/", "/:memory:")
    elif scheme in {"http", "https", "databricks", *DATABASE_PORTS}:
        is_valid = has_host and " " not in uri
    else:
        is_valid = uri == "databricks" or scheme in named("trackers")
    if not is_valid or uri != uri.strip():
        fault = f"{option}={redact(uri)!r} is no tracking address; valid are {_FORMS}."
        raise UserError(absent_part("tracker", scheme) or fault)
    return uri


def launch_address(uri: str | None, home: Home, *, environment: bool = True) -> str | None:
    """Resolved address at which a run launched here is tracked: the spec's, else MLFLOW_TRACKING_URI's.

    None: in DITLAB_HOME's database, wherever that home will be moved. `environment` False leaves the variable out.
    Raises UserError for an address that is malformed or holds a password.
    """
    option = "tracking.uri"
    if uri is None and environment:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip() or None
        option = "MLFLOW_TRACKING_URI"
    if uri is None:
        return None
    if redact(validate_tracking_uri(uri, option)) != uri:
        raise UserError(
            f"{option}={redact(uri)} holds a password, which would be written into every checkpoint; "
            "give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )
    check_tracker(uri)
    if scheme_of(urlsplit(uri)) == "sqlite":
        refuse_ray_copy(sqlite_path(uri), f"{option}={uri}", "give the database's absolute path")
    address = resolve_tracking_uri(uri, home)
    return None if address == resolve_tracking_uri(None, home) else address


def check_tracker(uri: str) -> None:
    """Raise UserError where another tracker than MLflow cannot use an address of its scheme on this machine."""
    scheme = scheme_of(urlsplit(uri))
    if target := named("trackers").get(scheme):
        load_part("tracker", scheme, target).check_address(uri)


def is_mlflow(uri: str) -> bool:
    """Return True where MLflow receives what is sent to an address, and no tracker of an add-on."""
    return scheme_of(urlsplit(uri)) not in named("trackers")


def resolve_tracking_uri(uri: str | None, home: Home) -> str:
    """Resolve null to DITLAB_HOME's database and paths to absolute ones. Raises UserError for a malformed address."""
    if uri is None:
        return sqlite_address(home.mlflow_database)
    if scheme_of(urlsplit(validate_tracking_uri(uri))) == "sqlite":
        return sqlite_address(sqlite_path(uri))
    return uri.rstrip("/")


def sqlite_address(path: Path) -> str:
    """The address of a database file, from which SQLAlchemy, MLflow and `sqlite_path` read the same path."""
    # Plain wherever that reads back as the path. Else slashes are encoded too: MLflow makes the folder of the text
    # after `sqlite:///` as it stands, and would leave a folder `50%2525` beside `50%25`.
    is_plain = "?" not in str(path) and unquote(str(path)) == str(path)
    return f"sqlite:///{path if is_plain else quote(str(path), safe='')}"


def sqlite_path(uri: str) -> Path:
    """The database file of a `sqlite:///` address, in which `#` is a character of the path."""
    return Path(unquote(uri.partition(":///")[2].partition("?")[0])).expanduser().absolute()


def artifact_address(folder: Path) -> str:
    """The address of a folder of MLflow's artifacts: its path, or a `file://` URI where MLflow changes such a path.

    MLflow decodes it, and puts it into SQL as it is, where a quote ends it and a colon begins a parameter.
    """
    text = str(folder)
    return folder.as_uri() if re.search(r"[?#':\\]", text) or unquote(text) != text else text


def is_server(uri: str) -> bool:
    """Return True if the address is a server's, which decides where artifacts go, and not a database's."""
    return scheme_of(urlsplit(uri)) in {"http", "https", "databricks"} or uri == "databricks"


def scheme_of(parts: SplitResult) -> str:
    """The scheme without its driver: `mysql` of `mysql+pymysql://`."""
    return parts.scheme.lower().partition("+")[0]


def redact(uri: str) -> str:
    """The address without its password, for messages, tags and file names."""
    return hide_in_urls(uri)


def exempt_from_proxies(*hosts: str) -> None:
    """Keep requests to this machine, and to further `hosts` of it, from the proxy that the environment names: no proxy
    reaches them. For this process and those it starts."""
    for name in ("no_proxy", "NO_PROXY"):
        given = os.environ.get(name) or os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        present = [each.strip() for each in given.split(",") if each.strip()]
        if "*" not in present:
            os.environ[name] = ",".join(dict.fromkeys([*present, *_LOOPBACK, *hosts]))


def check_reachable(uri: str, timeout: float = _TIMEOUT) -> str | None:
    """Reason why nothing answers at `uri` in time; None for any answer, an error too. A SQLite file must exist."""
    exempt_from_proxies()
    parts = urlsplit(uri)
    scheme = scheme_of(parts)
    if uri == "databricks" or scheme == "databricks" or scheme in named("trackers"):
        return None  # their own client tells
    if scheme == "sqlite":
        return None if sqlite_path(uri).is_file() else f"there is no file {sqlite_path(uri)}"
    try:
        if scheme in DATABASE_PORTS:
            socket.create_connection((parts.hostname or "", parts.port or DATABASE_PORTS[scheme]), timeout).close()
        else:
            bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
            urllib.request.urlopen(f"{bare.rstrip('/')}/health", timeout=timeout).close()
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        return getattr(cause, "strerror", None) or str(cause)
    return None


def access_fault(uri: str, remedy: str) -> str:
    """A sentence on an address that does not answer, with its remedy, or that refuses credentials; empty for others."""
    try:
        check_tracker(uri)
    except UserError as error:
        return str(error)
    if reason := check_reachable(uri):
        return f"tracking.uri={redact(uri)} does not answer ({reason}); {remedy}."
    return f"{refusal}, and give the command again." if (refusal := check_access(uri)) else ""


def check_access(uri: str, timeout: float = _TIMEOUT) -> str | None:
    """A clause if the server at `uri` refuses this process's name or password; None if not, and for no server."""
    if urlsplit(uri).scheme not in ("http", "https") or any(os.environ.get(name) for name in _OTHER_WAYS):
        return None
    return refusal_message(uri, *probe(uri, _authorization(), timeout))


def refusal_message(uri: str, status: int | None, answer: str = "") -> str | None:
    """A sentence, without its full stop, for an HTTP status that refuses a request; None for any other status.

    It quotes the `answer`, and names the remedy where status or answer say what is wrong, and none where they do not.
    """
    if status not in (401, 403):
        return None
    answer = " ".join(hide(answer).split())[:_LONGEST_ANSWER].rstrip(".")
    host = urlsplit(uri).netloc.rpartition("@")[2]
    if status == 401:
        what = "refuses the name or password" if _authorization() else "wants a name and password"
        return f"MLflow at {redact(uri)} {what} ({status}); {_REMEDY}"
    what = f"MLflow at {redact(uri)} refuses this ({status}{f': {answer}' if answer else ''})"
    if "Invalid Host header" in answer:
        return (
            f"{what}; start that server with --allowed-hosts {host} among its names (`ditlab ui` and `mlflow server` "
            "take it), or use a name that it answers to"
        )
    if "Permission denied" in answer:
        return f"{what}; ask its administrator for the permission, or {_REMEDY}"
    return f"{what}; its log, or that of a proxy before it, may say why"


def probe(uri: str, authorization: str | None, timeout: float = _TIMEOUT) -> tuple[int | None, str]:
    """HTTP status of a search for experiments, None where nothing answers, and the answer's text where it refuses."""
    exempt_from_proxies()
    request = urllib.request.Request(f"{uri.rstrip('/')}{_PROBE}")
    if authorization:
        request.add_unredirected_header("Authorization", authorization)  # for this server and no other
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return int(answer.status), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(10_000).decode(errors="replace")
    except (OSError, ValueError):
        return None, ""


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
