"""Connection to MLflow: its library, settings, kinds of errors, and the local database, looked at
without MLflow.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

from ditlab.errors import first_line
from ditlab.home import Home
from ditlab.storage.files import lock_fault, take_lock
from ditlab.storage.plain_files import MIB
from ditlab.tracking.access import (
    artifact_address,
    exempt_from_proxies,
    is_server,
    sqlite_address,
    sqlite_path,
)

_SETTINGS = {
    # Two attempts of 15 s instead of eight of 120 s: the journal waits better than a blocked thread
    # does.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    # Telemetry would keep an id in the user's home folder and talk to a third party.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_NOISY_LOGGERS = ("alembic", "mlflow.store.tracking.sqlalchemy_store")
_NO_LOCKS = (
    "which SQLite needs; name a server, or a database on another file system, as tracking.uri"
)
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
REFILL = "run `ditlab runs sync`, which fills a new one from the runs' journals and keeps this file"
"""Remedy."""
_WORDS = ("not a database", "malformed", "no such table", "no such column")
_LONGEST_CHECK = 256 * MIB
"""Bytes of a database whose every page is looked at, in about a second."""
_TIMEOUT = 10.0
"""Seconds for another process's transaction to end."""


def load_mlflow() -> ModuleType:
    """Import mlflow, with our settings (the user's own environment variables win). Takes about 1.4
    s the first time.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    exempt_from_proxies()
    try:
        Path.home()
    # a container's user without an entry in passwd: MLflow's import would fail on its settings
    except RuntimeError:
        os.environ["HOME"] = "/nonexistent"
    import mlflow

    for logger in _NOISY_LOGGERS:
        logging.getLogger(logger).setLevel(logging.WARNING)
    # We report an outage once; urllib3 would at each retry, and the store with a traceback for a
    # database's full disk.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return mlflow


def connect(uri: str, home: Home) -> Any:
    """An `MlflowClient` for a resolved address. A local database is made where there is none (2
    s).
    """
    mlflow = load_mlflow()
    if is_server(uri):
        return mlflow.MlflowClient(uri)
    with _database_lock(uri):
        # Made here first, with our artifact root, as the client's own default is ./mlruns in the
        # working directory.
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        if uri.startswith("sqlite:") and not sqlite_path(uri).exists():
            # MLflow keeps connections by address: those of a database that was moved away go on
            # with that file
            engine = getattr(SqlAlchemyStore, "_engine_map", {}).get(uri)
            if engine:
                engine.dispose()
            _make_database(sqlite_path(uri), home)
        SqlAlchemyStore(uri, artifact_address(home.artifacts))
    return mlflow.MlflowClient(uri)


def forget_artifact_folder(mlflow_run_id: str) -> None:
    """Make MLflow's client ask again where a run's artifacts lie: a copied home has the same ids in
    another folder.
    """
    from mlflow.tracking._tracking_service import utils

    getattr(utils, "_artifact_repos_cache", {}).pop(mlflow_run_id, None)


def _make_database(path: Path, home: Home) -> None:
    """Make all tables or no file: MLflow could not go on from a database cut short among its fifty
    migrations.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    # by a process that was killed here: we hold the lock
    for left in path.parent.glob(f".{path.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        whole = Path(folder, path.name)
        SqlAlchemyStore(sqlite_address(whole), artifact_address(home.artifacts)).engine.dispose()
        whole.rename(path)


@contextmanager
def _database_lock(uri: str) -> Iterator[None]:
    """Hold a lock on a local database: two trials that start together would break a new one, made
    without a lock.
    """
    if not uri.startswith("sqlite:"):
        yield
        return
    path = sqlite_path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_file = Path(f"{path}.lock")
    with lock_file.open("ab") as lock:
        take_lock(lock, wait=True)
        fault = lock_fault(lock_file)
        if fault:  # SQLite itself would say `database is locked` after half a minute
            raise OSError(errno.ENOLCK, f"its file system has no locks ({fault}), {_NO_LOCKS}")
        yield


def error_code(error: Exception) -> str:
    """MLflow's name of an error, as `RESOURCE_DOES_NOT_EXIST`; `None` for an error of another
    library.
    """
    return str(getattr(error, "error_code", None))


def is_refusal(error: Exception) -> bool:
    """Return True if MLflow says that the data is wrong, which it also says of a damaged page of
    its local database.
    """
    return error_code(error) in _REFUSALS and not is_damage(str(error))


def denial(error: Exception) -> tuple[int | None, str]:
    """HTTP status, 401 or 403, of an answer that refuses this process, and the answer's text; None
    for other errors.
    """
    answer = getattr(error, "response", None)  # of an artifact's upload
    given = getattr(answer, "status_code", None)
    status = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}.get(error_code(error), given)
    if status not in (401, 403):
        return None, ""
    text = str(getattr(answer, "text", ""))
    body = re.search(r"Response body: '(.*)'", str(error), re.DOTALL)
    if body:
        text = text or body[1]
    return status, text or str(error)


def outage_reason(error: Exception) -> str:
    """First line of an error of MLflow's client that says what is wrong."""
    reason = first_line(error)
    rest = str(error).partition("\n")[2]
    if rest and reason.startswith("(raised as a result of"):
        return first_line(RuntimeError(rest))  # SQLAlchemy's remark on when it happened
    if "error responses" in reason:
        return f"{reason}; the server's log says why"
    return reason


def is_damage(reason: str) -> bool:
    """Return True if the reason of a database's error is damage, and no lock, full disk or the
    like.
    """
    return any(word in reason for word in _WORDS)


def open_read_only(database: Path) -> sqlite3.Connection:
    """Open a SQLite file for reading. Raises FileNotFoundError where there is none.

    SQLite alone opens it: closing a descriptor of ours would end the locks that it holds on the
    file in this process, and two writers at a time would break the database
    (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    database.stat()
    return sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True, timeout=_TIMEOUT)


def holds_run(database: Path, mlflow_run_id: str) -> bool:
    """Return False where a database is gone or lacks a run; True also where that cannot be
    known.
    """
    try:
        with closing(open_read_only(database)) as connection:
            found = connection.execute(
                "SELECT 1 FROM runs WHERE run_uuid = ?", (mlflow_run_id,)
            ).fetchone()
    except FileNotFoundError:
        return False
    except (OSError, sqlite3.Error):
        return True
    return found is not None


def database_damage(database: Path) -> str:
    """Return a clause on a database that is damaged, wholly or in parts; empty for a whole one, and
    for none.
    """
    try:
        with closing(open_read_only(database)) as connection:
            connection.execute("SELECT 1 FROM runs, experiments LIMIT 1").fetchone()
            if database.stat().st_size > _LONGEST_CHECK:
                return ""
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except FileNotFoundError:
        return ""
    except (OSError, sqlite3.Error) as error:
        reason = first_line(error)
        # locked, for one
        if is_damage(reason):
            return f"{database} cannot be read ({reason})"
        return ""
    if found == "ok":
        return ""
    reason = found.splitlines()[-1].rstrip(".")[:200]  # the first line names the database
    return f"{database} is damaged in parts ({reason})"
