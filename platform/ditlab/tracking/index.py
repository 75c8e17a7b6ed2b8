"""Index of a home's journals: an SQLite file in the user's cache folder, made from the journals, which are the truth.

A journal is append-only, so each look reads on from the byte that the index knows. A journal of another inode or
another first line, and one that changed without growing, is read anew. The file may be deleted at any time; where it
cannot be written, or is damaged, the index is made in memory. A moved or copied home has a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ditlab.errors import first_line
from ditlab.home import Home
from ditlab.tracking.history import MAIN_TAG, SPEED
from ditlab.tracking.journal import (
    LONGEST_LINE,
    RECENT,
    TRAIN_LOSS,
    JournalRecord,
    all_metrics,
    read_journal,
    recent_median,
)

_LOCK_TIMEOUT = 30.0  # seconds that another process may take to read a journal
_TABLES = """
CREATE TABLE IF NOT EXISTS journals (
    id INTEGER PRIMARY KEY, run TEXT, node INTEGER, part TEXT, inode INTEGER, changed INTEGER, size INTEGER, head TEXT,
    end INTEGER, state TEXT, UNIQUE (run, node, part)
);
CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS points (
    journal INTEGER, metric INTEGER, position INTEGER, step INTEGER, time INTEGER, value REAL,
    PRIMARY KEY (journal, metric, position)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS points_of_no_journal AFTER DELETE ON journals
BEGIN DELETE FROM points WHERE journal = old.id; END;
CREATE TABLE IF NOT EXISTS specs (run TEXT PRIMARY KEY, stamp TEXT, fields TEXT);
"""
_FORMAT = 1
"""Version of the tables, in the file's name."""
_KEPT_TEXTS = (MAIN_TAG, "parameters.total", "ditlab.measurement.")
"""Beginnings of the names of tags and parameters that a run's summary has."""
_log = logging.getLogger("ditlab.tracking")

State = dict[str, Any]


class Part(NamedTuple):
    """Something that is read from journals, each time from where the last reading ended."""

    name: str
    read: Callable[[sqlite3.Connection, int, BinaryIO, int, State], int]
    """Function of (database, the journal's id in it, open journal, offset in bytes, state of the last reading, which it
    changes) that returns the end of the last whole line."""


class Journal(NamedTuple):
    """One journal of a home."""

    run: str
    node: int = 0


class _Known(NamedTuple):
    """How far a part of a journal was read."""

    id: int
    inode: int
    changed: int
    size: int
    head: str
    end: int
    state: str

    def is_of(self, found: os.stat_result) -> bool:
        return (self.inode, self.changed, self.size) == (found.st_ino, found.st_ctime_ns, found.st_size)


class JournalIndex:
    """Index of one home. Not thread-safe, but any thread may use it."""

    def __init__(self, home: Home, *, in_memory: bool = False) -> None:
        self._home = home
        self._runs = str(home.runs)
        self._begun = 0.0
        self.database = _connect(":memory:") if in_memory else _open_file(home)

    def __del__(self) -> None:
        self.database.close()

    def update(
        self, part: Part, journals: Collection[Journal], faults: dict[str, OSError] | None = None
    ) -> dict[Journal, State]:
        """Read what is new of journals, and return the state of each that is there.

        `faults` receives the errors of those that cannot be read, by run.
        """
        try:
            return self._update(part, journals, faults)
        except sqlite3.Error as error:
            _log.debug("the index of %s is made in memory (%s)", self._runs, first_line(error))
            if is_damage(error):
                remove(self._home)
            self.database = _connect(":memory:")
            return self._update(part, journals, faults)

    def keep_only(self, runs: Collection[str]) -> None:
        """Forget all runs but these: the others were deleted."""
        with suppress(sqlite3.Error):  # another process may be reading
            known = {run for (run,) in self.database.execute("SELECT DISTINCT run FROM journals")}
            gone = [(run,) for run in known.difference(runs)]
            if gone:
                self.database.executemany("DELETE FROM journals WHERE run = ?", gone)

    def _update(self, part: Part, journals: Collection[Journal], faults: Any) -> dict[Journal, State]:
        query = "SELECT run, node, id, inode, changed, size, head, end, state FROM journals WHERE part = ?"
        rows = self.database.execute(query, (part.name,))
        known = {Journal(run, node): _Known(*place) for run, node, *place in rows}
        states: dict[Journal, State] = {}
        with self.database:  # it commits what was begun, or rolls it back after an error
            for journal in journals:
                place = known.get(journal)
                try:
                    if place is None or not place.is_of(os.stat(self._path(journal))):  # noqa: PTH116 (a path costs more)
                        states[journal] = self._read_on(part, journal)
                    else:
                        states[journal] = json.loads(place.state)
                except OSError as error:
                    if faults is not None and not isinstance(error, FileNotFoundError):
                        faults[journal.run] = error
        return states

    def _path(self, journal: Journal) -> str:
        if journal.node:
            return str(self._home.run(journal.run).node_journal(journal.node))
        return f"{self._runs}/{journal.run}/journal.jsonl"

    def _begin(self) -> None:
        """Hold the lock, which other processes get each second."""
        if self.database.in_transaction and time.monotonic() - self._begun > 1:
            self.database.commit()
        if not self.database.in_transaction:
            self.database.execute("BEGIN IMMEDIATE")
            self._begun = time.monotonic()

    def _read_on(self, part: Part, journal: Journal) -> State:
        """Read a journal on from where this process or another one ended."""
        with open(self._path(journal), "rb") as file:  # noqa: PTH123
            self._begin()
            return self._read_file(part, journal, file)

    def _read_file(self, part: Part, journal: Journal, file: BinaryIO) -> State:
        key = (*journal, part.name)
        query = "SELECT id, inode, changed, size, head, end, state FROM journals WHERE (run, node, part) = (?, ?, ?)"
        row = self.database.execute(query, key).fetchone()
        found = os.fstat(file.fileno())
        head = hashlib.sha256(file.readline(LONGEST_LINE)).hexdigest()
        known = _Known(*row) if row else None
        has_grown = known and (known.inode, known.head) == (found.st_ino, head) and found.st_size > known.size
        if known and (has_grown or known.is_of(found)):
            number, end, state = known.id, known.end, json.loads(known.state)
        else:
            self.database.execute("DELETE FROM journals WHERE (run, node, part) = (?, ?, ?)", key)
            made = self.database.execute("INSERT INTO journals (run, node, part) VALUES (?, ?, ?)", key)
            number, end, state = made.lastrowid or 0, 0, {}
        end = part.read(self.database, number, file, end, state)
        self.database.execute(
            "UPDATE journals SET inode = ?, changed = ?, size = ?, head = ?, end = ?, state = ? WHERE id = ?",
            (found.st_ino, found.st_ctime_ns, found.st_size, head, end, json.dumps(state), number),
        )
        return state


def cache_file(home: Home) -> Path:
    """Return the path of a home's index: `$XDG_CACHE_HOME/ditlab/`, else `~/.cache/ditlab/`."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given if given.startswith("/") else os.path.expanduser("~/.cache"))  # noqa: PTH111
    key = hashlib.sha256(os.path.realpath(home.root).encode(errors="surrogateescape")).hexdigest()[:16]
    return folder / "ditlab" / f"journals-{_FORMAT}-{key}.sqlite"


def is_damage(error: sqlite3.Error) -> bool:
    """Return True for an error of a damaged file; False for a lock, a full disk, wrong SQL."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of an extended code
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def remove(home: Home) -> None:
    """Remove a home's index; the next process makes it again."""
    with suppress(OSError):
        cache_file(home).unlink()


def _connect(place: str) -> sqlite3.Connection:
    database = sqlite3.connect(place, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA cache_size = -65536")  # KiB: points of several metrics come in turns
    database.executescript(_TABLES)
    return database


def _open_file(home: Home) -> sqlite3.Connection:
    """Open the index of a home; in memory where its file cannot be used."""
    path = cache_file(home)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _connect(str(path))
    except (OSError, sqlite3.Error) as error:
        _log.debug("%s cannot be used (%s); the index is made in memory", path, first_line(error))
        if isinstance(error, sqlite3.Error) and is_damage(error):
            remove(home)
    return _connect(":memory:")


def _read_points(database: sqlite3.Connection, journal: int, file: BinaryIO, begin: int, state: State) -> int:
    """Add a journal's points to the table `points`; the state is a summary of the run."""
    names = dict(database.execute("SELECT name, id FROM names"))
    texts = state.setdefault("texts", {})
    end = begin

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal end
        for line in read_journal(file, begin):
            if not line.is_whole:
                return
            end = line.end
            record: JournalRecord = line.record or {"kind": ""}
            if record["kind"] == "metrics":
                for name, value in all_metrics(record):
                    if name not in names:
                        names[name] = database.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid
                    yield journal, names[name], line.begin, record["step"], record["time"], value
            elif record["kind"] in ("tags", "params"):
                texts.update((name, text) for name, text in record["values"].items() if name.startswith(_KEPT_TEXTS))

    database.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?)", rows())

    def ask(query: str, name: str) -> list[tuple[Any, ...]]:
        place = {"journal": journal, "metric": names.get(name), "recent": 1 - RECENT}
        return database.execute(query, place).fetchall()

    losses = {step: math.nan if value is None else value for step, value in ask(_RECENT_VALUES, TRAIN_LOSS)}
    loss = recent_median(losses)
    state["loss"] = None if math.isnan(loss) else loss
    state["speed"] = ask(_MEDIAN, SPEED)[0][0]
    last = ask(_LAST_VALUE, texts.get(MAIN_TAG, ""))
    state["main"] = last[0][0] if last else None
    return end


POINTS = Part("points", _read_points)
"""Points of all metrics, with a summary of the run: its `texts`, `loss`, `speed` and the value of its `main` metric."""
_OF_METRIC = "FROM points WHERE journal = :journal AND metric = :metric"
_RECENT_VALUES = (
    f"SELECT step, value {_OF_METRIC} AND step > :recent * (SELECT max(step) {_OF_METRIC}) ORDER BY position"
)
_LAST_VALUE = f"SELECT value {_OF_METRIC} ORDER BY position DESC LIMIT 1"
_MEDIAN = (
    f"SELECT avg(value) FROM (SELECT value {_OF_METRIC} ORDER BY value "
    f"LIMIT (SELECT 2 - count(*) % 2 {_OF_METRIC}) OFFSET (SELECT (count(*) - 1) / 2 {_OF_METRIC}))"
)
