"""Damage of MLflow's local database. Journals hold what it held of runs, so a new one can be filled from them."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from functools import lru_cache
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


def made_at(database: Path) -> float:
    """Return the time at which a database was made, in seconds since 1970: infinity where there is none, and 0 where it
    cannot be known."""
    try:
        state = database.stat()
    except FileNotFoundError:
        return math.inf
    except OSError:
        return 0.0
    return _made_at(database, state.st_dev, state.st_ino, state.st_ctime_ns)


@lru_cache(maxsize=64)
def _made_at(database: Path, device: int, inode: int, changed: int) -> float:
    try:
        with closing(open_database(database, "ro")) as connection:
            (first,) = connection.execute("SELECT min(creation_time) FROM experiments").fetchone()
    except (OSError, sqlite3.Error):
        return 0.0
    return first / 1000 if isinstance(first, int) else 0.0


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
