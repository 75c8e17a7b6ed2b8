"""Tracking addresses: forms, checks, and a probe before a client. Imports no mlflow."""

import os
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.parts import absent_part, load_part, named
from ditlab.secrets import hide, hide_in_urls
from ditlab.storage.local import refuse_ray_copy

DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Databases that MLflow can keep runs in, and their usual ports."""
_FORMS = (
    "http://HOST:PORT, https://HOST, sqlite:///PATH.db (four slashes for an absolute path; %25 "
    "for % and %3F for ?), postgresql://USER@HOST/DATABASE, mysql://..., mssql://..., "
    "databricks, or null for the database under DITLAB_HOME"
)
_TIMEOUT = 5.0
"""Seconds for an answer."""
_LOOPBACK = ("localhost", "127.0.0.1", "127.0.0.0/8", "::1", "[::1]")
"""This machine, as urllib and requests each compare names."""
_LONGEST_ANSWER = 300
"""Characters of a refusal that are quoted."""


def validate_tracking_uri(uri: str, option: str = "tracking.uri") -> str:
    """Return `uri` if it is well-formed. Raises UserError naming the option, its value and the
    valid forms.
    """
    try:
        parts = urlsplit(uri)
        scheme = scheme_of(uri)
        has_host = bool(parts.hostname) and parts.port != 0
        path = uri.partition("://")[2]
    except ValueError:  # whose message may show a piece of a password
        scheme = ""
    if scheme == "sqlite":
        # Another driver or a query, which SQLAlchemy would read, would have to be carried to every
        # worker.
        is_valid = (
            parts.scheme in ("sqlite", "sqlite+pysqlite")
            and path.startswith("/")
            and "?" not in path
        )
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
    """Resolved address at which a run launched here is tracked: the spec's, else
    MLFLOW_TRACKING_URI's.

    None: in DITLAB_HOME's database, wherever that home will be moved. `environment` False leaves
    the variable out. Raises UserError for an address that is malformed or holds a password.
    """
    option = "tracking.uri"
    if uri is None and environment:
        uri = os.environ.get("MLFLOW_TRACKING_URI", "").strip() or None
        option = "MLFLOW_TRACKING_URI"
    if uri is None:
        return None
    if redact(validate_tracking_uri(uri, option)) != uri:
        raise UserError(
            f"{option}={redact(uri)} holds a password, which would be written into every "
            "checkpoint; give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD "
            "instead."
        )
    check_tracker(uri)
    if scheme_of(uri) == "sqlite":
        refuse_ray_copy(sqlite_path(uri), f"{option}={uri}", "give the database's absolute path")
    address = resolve_tracking_uri(uri, home)
    if address == resolve_tracking_uri(None, home):
        return None
    return address


def check_tracker(uri: str) -> None:
    """Raise UserError where another tracker than MLflow cannot use an address of its scheme on this
    machine.
    """
    scheme = scheme_of(uri)
    target = named("trackers").get(scheme)
    if target:
        load_part("tracker", scheme, target).check_address(uri)


def is_mlflow(uri: str) -> bool:
    """Return True where MLflow receives what is sent to an address, and no tracker of an add-on."""
    return scheme_of(uri) not in named("trackers")


def resolve_tracking_uri(uri: str | None, home: Home) -> str:
    """Resolve null to DITLAB_HOME's database and paths to absolute ones. Raises UserError for a
    malformed address.
    """
    if uri is None:
        return sqlite_address(home.mlflow_database)
    if scheme_of(validate_tracking_uri(uri)) == "sqlite":
        return sqlite_address(sqlite_path(uri))
    return uri.rstrip("/")


def sqlite_address(path: Path) -> str:
    """The address of a database file, from which SQLAlchemy, MLflow and `sqlite_path` read the same
    path.
    """
    text = str(path)
    # Plain wherever that reads back as the path. Else slashes are encoded too: MLflow makes the
    # folder of the text after `sqlite:///` as it stands, and would leave a folder `50%2525` beside
    # `50%25`.
    if "?" in text or unquote(text) != text:
        text = quote(text, safe="")
    return f"sqlite:///{text}"


def sqlite_path(uri: str) -> Path:
    """The database file of a `sqlite:///` address, in which `#` is a character of the path."""
    return Path(unquote(uri.partition(":///")[2].partition("?")[0])).expanduser().absolute()


def artifact_address(folder: Path) -> str:
    """The address of a folder of MLflow's artifacts: its path, or a `file://` URI where MLflow
    changes such a path.

    MLflow decodes it, and puts it into SQL as it is, where a quote ends it and a colon begins a
    parameter.
    """
    text = str(folder)
    if re.search(r"[?#':\\]", text) or unquote(text) != text:
        return folder.as_uri()
    return text


def is_server(uri: str) -> bool:
    """Return True if the address is a server's, which decides where artifacts go, and not a
    database's.
    """
    return scheme_of(uri) in {"http", "https", "databricks"} or uri == "databricks"


def scheme_of(uri: str) -> str:
    """The scheme without its driver: `mysql` of `mysql+pymysql://`."""
    return urlsplit(uri).scheme.partition("+")[0]


def redact(uri: str) -> str:
    """The address without its password, for messages, tags and file names."""
    return hide_in_urls(uri)


def exempt_from_proxies() -> None:
    """Keep requests to this machine from the proxy that the environment names: no proxy reaches
    them. For this process and those it starts."""
    for name in ("no_proxy", "NO_PROXY"):
        given = (
            os.environ.get(name) or os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        )
        present = [each.strip() for each in given.split(",") if each.strip()]
        if "*" not in present:
            os.environ[name] = ",".join(dict.fromkeys([*present, *_LOOPBACK]))


def check_reachable(uri: str, timeout: float = _TIMEOUT) -> str | None:
    """Reason why nothing answers at `uri` in time; None for any answer, an error too. A SQLite file
    must exist.
    """
    exempt_from_proxies()
    parts = urlsplit(uri)
    scheme = scheme_of(uri)
    if uri == "databricks" or scheme == "databricks" or scheme in named("trackers"):
        return None  # their own client tells
    if scheme == "sqlite":
        if sqlite_path(uri).is_file():
            return None
        return f"there is no file {sqlite_path(uri)}"
    try:
        if scheme in DATABASE_PORTS:
            socket.create_connection(
                (parts.hostname or "", parts.port or DATABASE_PORTS[scheme]), timeout
            ).close()
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
    """A sentence on an address that does not answer or cannot be used, with its remedy; empty for
    others.
    """
    try:
        check_tracker(uri)
    except UserError as error:
        return str(error)
    reason = check_reachable(uri)
    if reason:
        return f"tracking.uri={redact(uri)} does not answer ({reason}); {remedy}."
    return ""


def refusal_message(uri: str, status: int | None, answer: str = "") -> str | None:
    """A sentence, without its full stop, for an HTTP status that refuses a request; None for any
    other status.
    """
    if status not in (401, 403):
        return None
    answer = " ".join(hide(answer).split())[:_LONGEST_ANSWER].rstrip(".")
    return (
        f"MLflow at {redact(uri)} refuses this ({status}: {answer or 'no reason'}); set "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to those of an account that may "
        "do it, or correct that server's --allowed-hosts"
    )
