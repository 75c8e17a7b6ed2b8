"""MLflow's database in a home, looked at without MLflow: whether it is damaged, and which runs it has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ditlab.errors import first_line
from ditlab.storage.plain_files import MIB, check_plain

REFILL = "run `ditlab runs sync`, which fills a new one from the runs' journals and keeps this file"
"""Remedy."""
_WORDS = ("not a database", "malformed", "no such table", "no such column", "no plain file")
_LONGEST_CHECK = 256 * MIB
"""Bytes of a database whose every page is looked at, in about a second."""
_TIMEOUT = 10.0
"""Seconds for another process's transaction to end."""


def is_damage(reason: str) -> bool:
    """Return True if the reason of a database's error is damage, and no lock, full disk or the like."""
    return any(word in reason for word in _WORDS)


def open_read_only(database: Path) -> sqlite3.Connection:
    """Open a SQLite file for reading. Raises OSError for anything but a regular file."""
    check_plain(database)
    return sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True, timeout=_TIMEOUT)


def holds_run(database: Path, mlflow_run_id: str) -> bool:
    """Return False where a database is gone or lacks a run; True also where that cannot be known."""
    try:
        with closing(open_read_only(database)) as connection:
            found = connection.execute("SELECT 1 FROM runs WHERE run_uuid = ?", (mlflow_run_id,)).fetchone()
    except FileNotFoundError:
        return False
    except (OSError, sqlite3.Error):
        return True
    return found is not None


def database_damage(database: Path) -> str:
    """Return a clause on a database that is damaged, wholly or in parts; empty for a whole one, and for none."""
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
        return f"{database} cannot be read ({reason})" if is_damage(reason) else ""  # locked, for one
    if found == "ok":
        return ""
    reason = found.splitlines()[-1].rstrip(".")[:200]  # the first line names the database
    return f"{database} is damaged in parts ({reason})"
