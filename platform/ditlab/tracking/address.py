"""Tracking addresses: their forms, their checks, and the address that null stands for. Imports no mlflow."""

import os
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.secrets import hide_in_urls

DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Databases that MLflow can keep runs in, and their usual ports."""
_FORMS = (
    "http://HOST:PORT, https://HOST, sqlite:///PATH.db, postgresql://USER@HOST/DATABASE, mysql://..., mssql://..., "
    "databricks, or null for the database under DITLAB_HOME"
)


def validate_tracking_uri(uri: str, knob: str = "tracking.uri") -> str:
    """Return `uri` if it is well-formed. Raises UserError naming the knob, its value and the valid forms."""
    if not uri or uri != uri.strip() or (" " in uri and not uri.startswith("sqlite:")):
        raise _malformed(uri, "is blank or holds white space", knob)
    if uri == "databricks":
        return uri
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        # Of a password with a slash in it, the error would show a piece.
        raise _malformed(uri, "is no address" if "@" in uri else f"is no address ({error})", knob) from None
    scheme = scheme_of(parts)
    if scheme == "file" or (not scheme and "://" not in uri):
        raise _malformed(uri, "is a plain folder, which MLflow no longer takes as a store", knob)
    if scheme == "sqlite":
        if parts.netloc or parts.path in ("", "/") or parts.path == "/:memory:":
            raise _malformed(
                uri, "names no database file (three slashes for a relative path, four for an absolute one)", knob
            )
        return uri
    if scheme not in {"http", "https", "databricks", *DATABASE_PORTS}:
        raise _malformed(uri, f"has the unknown scheme {scheme!r}", knob)
    if not parts.hostname:
        raise _malformed(uri, "names no host", knob)
    if port == 0:
        raise _malformed(uri, "has port 0", knob)
    return uri


def launch_address(uri: str | None, home: Home, *, environment: bool = True) -> str | None:
    """Resolved address at which a run launched here is tracked: the spec's, else MLFLOW_TRACKING_URI's.

    None: in DITLAB_HOME's database, wherever that home will be moved. `environment` False leaves the variable out.
    Raises UserError for an address that is malformed or holds a password.
    """
    knob = "tracking.uri"
    if uri is None and environment:
        uri, knob = os.environ.get("MLFLOW_TRACKING_URI", "").strip() or None, "MLFLOW_TRACKING_URI"
    if uri is None:
        return None
    refuse_password(validate_tracking_uri(uri, knob), knob)
    return resolve_tracking_uri(uri, home)


def refuse_password(uri: str, knob: str = "tracking.uri") -> None:
    """Raise UserError for an address that holds a password."""
    if redact(uri) != uri:
        raise UserError(
            f"{knob}={redact(uri)} holds a password, which would be written into every checkpoint; "
            "give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead."
        )


def resolve_tracking_uri(uri: str | None, home: Home) -> str:
    """Resolve null to DITLAB_HOME's database and paths to absolute ones: workers have other working directories.

    Raises UserError as `validate_tracking_uri` does.
    """
    if uri is None:
        return f"sqlite:///{home.mlflow_database}"
    parts = urlsplit(validate_tracking_uri(uri))
    if scheme_of(parts) == "sqlite":
        return f"{parts.scheme}:///{sqlite_path(uri)}"
    return uri.rstrip("/")


def sqlite_path(uri: str) -> Path:
    """The database file of a `sqlite:///` address."""
    return Path(urlsplit(uri).path[1:]).expanduser().absolute()


def is_server(uri: str) -> bool:
    """Return True if the address is a server's, which decides where artifacts go, and not a database's."""
    return scheme_of(urlsplit(uri)) in {"http", "https", "databricks"} or uri == "databricks"


def scheme_of(parts: SplitResult) -> str:
    """The scheme without its driver: `mysql` of `mysql+pymysql://`."""
    return parts.scheme.lower().partition("+")[0]


def redact(uri: str) -> str:
    """The address without its password, for messages, tags and file names."""
    return hide_in_urls(uri)


def _malformed(uri: str, fault: str, knob: str) -> UserError:
    uri = redact(uri)
    return UserError(f"{knob}={uri!r} {fault}; valid are {_FORMS}.")
