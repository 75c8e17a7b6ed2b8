"""Damage of MLflow's local database. Journals hold what it held of runs, so a new one can be filled from them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from ditlab.errors import UserError, first_line
from ditlab.storage.plain_files import MIB, check_plain

REFILL = "move that file aside, and `ditlab runs sync` fills a new one from the runs' journals"
"""Remedy."""
_WORDS = ("not a database", "malformed", "no such table", "no such column", "no plain file")
_LONGEST_CHECK = 256 * MIB
"""Bytes of a database whose every page is looked at, in about a second."""
_TIMEOUT = 10.0
"""Seconds for another process's transaction to end."""


def is_damage(reason: str) -> bool:
    """Return True if the reason of a database's error is damage, and no lock, full disk or the like."""
    return any(word in reason for word in _WORDS)


def open_database(database: Path, mode: str) -> sqlite3.Connection:
    """Open a SQLite file, `ro` or `rw`, without a transaction. Raises OSError for anything but a regular file."""
    check_plain(database)
    uri = f"file:{quote(str(database))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_TIMEOUT)


def check_database(database: Path) -> str:
    """Return a sentence on a database of which parts are damaged; empty for a whole one, and where there is none.

    Raises UserError for one that cannot be read at all.
    """
    try:
        with closing(open_database(database, "ro")) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if database.stat().st_size > _LONGEST_CHECK:
                return ""
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except FileNotFoundError:
        return ""
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, sqlite3.OperationalError):  # locked, for one
            return ""
        raise UserError(f"{database} cannot be read ({first_line(error)}); {REFILL}.") from None
    if found == "ok":
        return ""
    reason = found.splitlines()[-1].rstrip(".")[:200]  # the first line names the database
    return f"{database} is damaged in parts ({reason}); {REFILL}."
