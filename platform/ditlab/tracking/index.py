"""Index of a home's journals: an SQLite file in the user's cache folder, made from the journals,
which are the truth.

A journal is append-only, so each look reads on from the byte that the index knows. A journal of
another inode or another first line, and one that changed without growing, is read again. The file
may be deleted at any time; where it is damaged or cannot be written, the index is made in memory. A
moved or copied home has a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ditlab.errors import first_line
from ditlab.home import Home
from ditlab.tracking.history import DEVICES_TAG, MAIN_TAG, JournalFacts
from ditlab.tracking.journal import LONGEST_LINE, all_metrics, read_journal

_FORMAT = 3
"""Version of the tables, in the file's name."""
_LOCK_TIMEOUT = 30.0  # seconds that another process may take to read journals
_CACHE = "PRAGMA cache_size = -65536"  # KiB: points of several metrics come in turns
# Names that no question in SQL has by accident.
_TABLES = """
CREATE TABLE IF NOT EXISTS _journals (
    id INTEGER PRIMARY KEY, run TEXT, node INTEGER, inode INTEGER, size INTEGER, changed INTEGER,
    head TEXT, end INTEGER, state TEXT, UNIQUE (run, node)
);
CREATE TABLE IF NOT EXISTS _names (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS _points (
    journal INTEGER, metric INTEGER, position INTEGER, step INTEGER, time INTEGER, value REAL,
    PRIMARY KEY (journal, metric, position)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS points_of_no_journal AFTER DELETE ON _journals
BEGIN DELETE FROM _points WHERE journal = old.id; END;
"""
_FORGET = "DELETE FROM _journals WHERE (run, node) = (?, ?)"
_KEPT_TAGS = (MAIN_TAG, "ditlab.measurement.")
"""Beginnings of the names of tags that are kept with a run's points."""
_log = logging.getLogger("ditlab.tracking")

State = dict[str, Any]


class Journal(NamedTuple):
    """One journal of a home."""

    run: str
    node: int = 0


class Place(NamedTuple):
    """Place in an open journal from which it is read on."""

    database: sqlite3.Connection
    id: int
    """The journal's in the database."""
    file: BinaryIO
    begin: int
    """Offset in bytes."""


class _Known(NamedTuple):
    """How far a journal was read."""

    inode: int
    size: int
    changed: int
    id: int
    head: str
    end: int
    state: str


class JournalIndex:
    """Index of one home. Not thread-safe, but any thread may use it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._faults: dict[str, OSError] = {}
        """Errors of journals that the last update could not read, by run."""
        path = cache_file(home)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.database = _connect(str(path))
        except (OSError, sqlite3.Error) as error:
            self.recover(error)

    def __del__(self) -> None:
        self.database.close()

    def recover(self, error: Exception) -> None:
        """Go on in memory after an error of the file; one that is damaged is made again by the next
        process.
        """
        path = cache_file(self._home)
        _log.debug("%s cannot be used (%s); the index is made in memory", path, first_line(error))
        if is_damage(error):
            with suppress(OSError):
                path.unlink()
        self.database = _connect(":memory:")

    def update(self, journals: Collection[Journal]) -> dict[Journal, State]:
        """Read what is new in journals, and return the state of each (`_read`)."""
        try:
            return self._update(journals)
        except sqlite3.Error as error:
            self.recover(error)
        return self._update(journals)

    def keep_only(self, runs: Collection[str]) -> None:
        """Forget all runs but these: the others were deleted."""
        with suppress(sqlite3.Error):  # another process may be reading
            known = {run for (run,) in self.database.execute("SELECT DISTINCT run FROM _journals")}
            gone = [(run,) for run in known.difference(runs)]
            if gone:
                with self.database:
                    self.database.execute("BEGIN IMMEDIATE")
                    self.database.executemany("DELETE FROM _journals WHERE run = ?", gone)

    def fault_notes(self) -> list[str]:
        """Return a sentence on each run whose journal the last update could not read."""
        return [
            f"run {run_id}: {self._home.run(run_id).journal} cannot be read ({first_line(error)})"
            for run_id, error in self._faults.items()
        ]

    def _update(self, journals: Collection[Journal]) -> dict[Journal, State]:
        self._faults = {}
        known = self._known()
        changed = [
            journal for journal in journals if self._has_changed(journal, known.get(journal))
        ]
        if changed:
            with self.database:
                self.database.execute("BEGIN IMMEDIATE")
                known = self._known()  # another process may have read them meanwhile
                for journal in changed:
                    try:
                        with open(self._path(journal), "rb") as file:  # noqa: PTH123
                            self._read_on(journal, known.get(journal), file)
                    except FileNotFoundError:
                        self.database.execute(_FORGET, journal)
                    except OSError as error:
                        self._faults[journal.run] = error
            known = self._known()
        return {
            journal: json.loads(known[journal].state) for journal in journals if journal in known
        }

    def _known(self) -> dict[Journal, _Known]:
        rows = self.database.execute(
            "SELECT run, node, inode, size, changed, id, head, end, state FROM _journals"
        )
        return {Journal(run, node): _Known(*known) for run, node, *known in rows}

    def _path(self, journal: Journal) -> str:
        name = "journal.jsonl"
        if journal.node:
            name = f"journal.node-{journal.node}.jsonl"
        return f"{self._home.root}/train/{journal.run}/{name}"

    def _has_changed(self, journal: Journal, known: _Known | None) -> bool:
        try:
            found = os.stat(self._path(journal))  # noqa: PTH116 (a path costs more)
        except FileNotFoundError:
            return known is not None
        except OSError as error:
            self._faults[journal.run] = error
            return False
        return known is None or known[:3] != (found.st_ino, found.st_size, found.st_ctime_ns)

    def _read_on(self, journal: Journal, known: _Known | None, file: BinaryIO) -> None:
        """Read a journal on from where this process or another one ended; another journal from its
        beginning.
        """
        found = os.fstat(file.fileno())
        stamp = (found.st_ino, found.st_size, found.st_ctime_ns)
        head = hashlib.sha256(file.readline(LONGEST_LINE)).hexdigest()
        has_grown = (
            known
            and (known.inode, known.head) == (found.st_ino, head)
            and known.size < found.st_size
        )
        if known and not has_grown and known[:3] != stamp:
            self.database.execute(_FORGET, journal)
            known = None
        if known is None:
            insert = "INSERT INTO _journals (run, node, end, state) VALUES (?, ?, 0, '{}')"
            number = self.database.execute(insert, journal).lastrowid or 0
            known = _Known(0, 0, 0, number, head, 0, "{}")
        state = json.loads(known.state)
        end = _read(Place(self.database, known.id, file, known.end), state)
        self.database.execute(
            "UPDATE _journals SET (inode, size, changed, head, end, state) = (?, ?, ?, ?, ?, "
            "?) WHERE id = ?",
            (*stamp, head, end, json.dumps(state), known.id),
        )


def cache_file(home: Home) -> Path:
    """Return the path of a home's index: `$XDG_CACHE_HOME/ditlab/`, else `~/.cache/ditlab/`."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not folder.startswith("/"):
        folder = os.path.expanduser("~/.cache")  # noqa: PTH111 (Path's own raises RuntimeError)
    if folder.startswith("~"):
        folder = os.devnull  # a user without a home folder: no file can be made there
    real_path = os.path.realpath(home.root).encode(errors="surrogateescape")
    key = hashlib.sha256(real_path).hexdigest()[:16]
    return Path(folder, "ditlab", f"journals-{_FORMAT}-{key}.sqlite")


def is_damage(error: Exception) -> bool:
    """Return True for an error of a damaged file; False for a lock, a full disk, wrong SQL."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the details of an extended code
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _connect(place: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        place, timeout=_LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
    )
    database.execute(_CACHE)
    database.executescript(_TABLES)
    return database


def _read(place: Place, state: State) -> int:
    """Read a journal from a place on; returns the end of its last whole line, in bytes.

    Points go to the table `_points`; the state has the run's `params` as they are now, `tags`, and
    the `hours` of its devices up to the latest record.
    """
    tags = state.setdefault("tags", {})
    params = state.setdefault("params", {})
    facts = JournalFacts(
        device_hours=state.setdefault("hours", {}), counted_until=state.get("until", 0)
    )
    facts.tags[DEVICES_TAG] = state.get("devices", "")
    names = dict(place.database.execute("SELECT name, id FROM _names"))
    end = place.begin

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal end
        for line in read_journal(place.file, place.begin):
            if not line.is_whole:
                return
            end = line.end
            record = line.record
            if record is None:
                continue
            facts.count_time(record["time"], record["kind"])
            match record["kind"]:
                case "metrics":
                    for name, value in all_metrics(record):
                        if name not in names:
                            insert = "INSERT INTO _names (name) VALUES (?)"
                            names[name] = place.database.execute(insert, (name,)).lastrowid
                        yield (
                            place.id,
                            names[name],
                            line.begin,
                            record["step"],
                            record["time"],
                            value,
                        )
                case "params":
                    params.update(record["values"])
                case "resume":
                    params.update({path: new for path, (_, new) in record["changes"].items()})
                case "tags":
                    facts.tags |= record["values"]
                    tags.update(
                        {
                            tag: text
                            for tag, text in record["values"].items()
                            if tag.startswith(_KEPT_TAGS)
                        }
                    )

    place.database.executemany("INSERT OR REPLACE INTO _points VALUES (?, ?, ?, ?, ?, ?)", rows())
    state.update(devices=facts.tags[DEVICES_TAG], until=facts.counted_until)
    return end


class DeviceHours:
    """Hours of devices of the runs of a home: what their attempts held, from each one's start to
    its latest record.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._index = JournalIndex(home)

    def by_run(self, run_ids: Collection[str] | None = None) -> dict[str, Mapping[str, float]]:
        """Read what is new, and return the hours by device (`GPU`, `core`) of each run that has
        some.

        `run_ids`: these runs alone; None: all of the home.
        """
        if run_ids is None:
            run_ids = []
            with suppress(OSError):
                run_ids = [
                    each.name
                    for each in os.scandir(self._home.runs)
                    if not each.name.startswith(".")
                ]
            self._index.keep_only(run_ids)
        states = self._index.update([Journal(run_id) for run_id in run_ids])
        return {journal.run: state["hours"] for journal, state in states.items() if state["hours"]}

    def total(self, run_ids: Collection[str] | None = None) -> defaultdict[str, float]:
        """Hours by device of all runs, or of some, together."""
        total: defaultdict[str, float] = defaultdict(float)
        for each in self.by_run(run_ids).values():
            for device, hours in each.items():
                total[device] += hours
        return total
