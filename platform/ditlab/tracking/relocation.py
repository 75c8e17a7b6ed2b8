"""Moved and copied homes: their former places, and the absolute paths in MLflow's database. Imports no mlflow.

Paths in the database are mapped in one transaction, after a backup.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.storage.files import add_checksum, has_checksum, is_intact, sync_file, sync_folder, write_durably
from ditlab.storage.plain_files import MIB, check_plain, parse_json, read_plain
from ditlab.tracking.database_damage import REFILL, open_database

_FORM = re.compile(r"(?P<scheme>file://|sqlite(?:\+\w+)?:///)?(?P<path>/.*)", re.DOTALL)
KNOWN_SCHEMAS = {"dc11669786a5": "MLflow 3.17"}
"""Alembic revisions of the database, and the MLflow whose newest one each is."""
_LOCATIONS = (
    ("experiments", "artifact_location", ""),
    ("runs", "artifact_uri", ""),
    ("logged_models", "artifact_location", ""),
    ("model_versions", "source", ""),
    ("model_versions", "storage_location", ""),
    ("trace_tags", "value", "key IN ('mlflow.artifactLocation', 'mlflow.trace.archiveLocation') AND "),
    ("workspaces", "trace_archival_location", ""),
)
"""(table, column, condition) of artifact locations. Parameters and datasets, which say where data once were, stay."""
_log = logging.getLogger("ditlab.tracking")
_said: set[Path] = set()
"""Damaged files that were said in this process."""


@dataclass(frozen=True)
class PathMap:
    """Mapping of paths and addresses (`/`, `file:///`, `sqlite:////`...) from former places to the present one."""

    former: tuple[Path, ...]
    present: Path

    def relocated(self, text: str) -> str | None:
        """The path or address at the present place; None for one that lies at no former place.

        Of places that lie in each other, the innermost one counts.
        """
        form = _FORM.fullmatch(text)
        if form is None:
            return None
        scheme = form["scheme"] or ""
        is_quoted = scheme == "file://"
        path = unquote(form["path"]) if is_quoted else form["path"]
        inside = [place for place in (*self.former, self.present) if _is_below(path, str(place))]
        innermost = max(inside, key=lambda place: len(str(place)), default=self.present)
        if innermost == self.present:
            return None
        moved = str(self.present) + path[len(str(innermost)) :]
        return scheme + (quote(moved) if is_quoted else moved)

    def relocated_value(self, value: Any) -> Any:
        """A value of JSON or YAML with every text in it mapped, keys of mappings as they are."""
        if isinstance(value, str):
            moved = self.relocated(value)
            return value if moved is None else moved
        if isinstance(value, dict):
            return {key: self.relocated_value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.relocated_value(item) for item in value]
        return value


def found_paths(value: Any, path_map: PathMap) -> Iterable[str]:
    """Texts in a value of JSON or YAML that lie at a former place."""
    if isinstance(value, str):
        if path_map.relocated(value) is not None:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from found_paths(item, path_map)
    elif isinstance(value, list):
        for item in value:
            yield from found_paths(item, path_map)


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")


@dataclass(frozen=True)
class DatabaseRelocation:
    """Paths of one database that were mapped, or would be."""

    changes: dict[str, int] = field(default_factory=dict)
    """Number of rows by `table.column`, without those that have none."""
    backup: Path | None = None
    """Copy of the database as it was; None where nothing was to be changed, or nothing was written."""

    @property
    def num_changes(self) -> int:
        """Number of mapped paths."""
        return sum(self.changes.values())


def first_home(database: Path) -> Path | None:
    """Home in which a database was made, by the artifact folder of MLflow's first experiment.

    None where there is no database, where it cannot be read, and where its artifacts lie elsewhere.
    """
    try:
        with closing(open_database(database, "ro")) as connection:
            row = connection.execute("SELECT artifact_location FROM experiments WHERE experiment_id = 0").fetchone()
    except (OSError, sqlite3.Error):
        return None
    location = Path(str(row[0]).removeprefix("file://")) if row else Path()
    is_ours = location.is_absolute() and (location.name, location.parent.name) == ("0", "artifacts")
    return location.parent.parent if is_ours and "\0" not in str(location) else None


def refers_to_former_places(database: Path, path_map: PathMap) -> bool:
    """Return True if an experiment or run in a database keeps its artifacts at a former place.

    False where there is no database, or none that can be read: MLflow says so itself.
    """
    try:
        with closing(open_database(database, "ro")) as connection:
            return any(
                path_map.relocated(location) is not None
                for table, column, _ in _LOCATIONS[:2]
                for (location,) in connection.execute(f"SELECT DISTINCT {column} FROM {table}")
                if isinstance(location, str)
            )
    except (OSError, sqlite3.Error):
        return False


@contextmanager
def relocating(database: Path, path_map: PathMap, *, dry_run: bool = False) -> Iterator[DatabaseRelocation]:
    """Map the paths of a database in one transaction, which is committed once the body has ended without an error.

    A copy of the database as it was lies beside it by then. With `dry_run` nothing is written. No other process can
    write to the database during the body. Raises UserError for a database that is locked, damaged or of an unknown
    schema; then nothing was changed.
    """
    try:
        check_plain(database)
    except FileNotFoundError:
        yield DatabaseRelocation()
        return
    except OSError as error:
        raise UserError(f"{database} cannot be relocated ({error.strerror}); put MLflow's database there.") from None
    try:
        with closing(open_database(database, "ro" if dry_run else "rw")) as connection:
            connection.execute("BEGIN" if dry_run else "BEGIN IMMEDIATE")
            _check_schema(database, connection)
            changes = _changes(connection, path_map)
            backup = _back_up(database) if changes and not dry_run else None
            counts: dict[str, int] = {}
            for table, column, row, location in changes:
                if not dry_run:
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (location, row))
                counts[f"{table}.{column}"] = counts.get(f"{table}.{column}", 0) + 1
            try:
                yield DatabaseRelocation(counts, backup)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise UserError(f"{database} cannot be relocated ({first_line(error)}); {_remedy(error)}.") from error


def _check_schema(database: Path, connection: sqlite3.Connection) -> None:
    versions = [str(version) for (version,) in connection.execute("SELECT version_num FROM alembic_version")]
    if len(versions) != 1 or versions[0] not in KNOWN_SCHEMAS:
        known = ", ".join(f"{version} ({name})" for version, name in KNOWN_SCHEMAS.items())
        raise UserError(
            f"{database} has MLflow's schema {', '.join(versions) or 'of no version'}, and only {known} is known here; "
            "move the folder back to where it was, or install the DiTLab that goes with that MLflow."
        )


def _changes(connection: sqlite3.Connection, path_map: PathMap) -> list[tuple[str, str, int, str]]:
    """(table, column, row, new location) of every location at a former place."""
    return [
        (table, column, row, moved)
        for table, column, condition in _LOCATIONS
        for row, location in connection.execute(
            f"SELECT rowid, {column} FROM {table} WHERE {condition}{column} IS NOT NULL"
        ).fetchall()
        if isinstance(location, str) and (moved := path_map.relocated(location)) is not None
    ]


def _back_up(database: Path) -> Path:
    """Copy a database as it is on the disk; whole once it has its name."""
    backup = database.with_name(f"{database.name}.backup-{datetime.now():%Y%m%d-%H%M%S}")
    part = backup.with_name(f".{backup.name}.part")
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, database.stat().st_mode & 0o777))
    try:
        with closing(open_database(database, "ro")) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        sync_file(part)
        part.rename(backup)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(backup.parent)
    return backup


def _remedy(error: sqlite3.Error) -> str:
    text = str(error)
    if "locked" in text or "busy" in text:
        return "end the MLflow server and the runs that use it"
    if "full" in text:
        return "make room on its disk"
    return f"bring back a whole copy of it, or {REFILL}"


def former_places(home: Home) -> tuple[Path, ...]:
    """Other folders at which this home has been, by its `places.json`; a home without one, by its MLflow database.

    A place that is the same folder by another path, such as a link, is none.
    """
    places = _recorded(home)
    if not places and (first := first_home(home.mlflow_database)):
        places = [first]
    return tuple(place for place in dict.fromkeys(places) if not _is_same(place, home.root))


def path_map(home: Home) -> PathMap:
    """Mapping of paths at the home's former places to the present one."""
    return PathMap(former_places(home), home.root)


def record_place(home: Home) -> None:
    """Add the home's folder to its `places.json`. A disk that refuses is passed over: a run would report it itself."""
    places = _recorded(home)
    if home.root not in places:
        with suppress(OSError):
            _write(home, [*places, home.root])


def forget_former_places(home: Home) -> None:
    """Make the home's folder the only one in its `places.json`. Raises OSError where the disk refuses."""
    _write(home, [home.root])


def check_place(home: Home, *written_to: Any) -> None:
    """Raise UserError for a moved or copied home that would write into the former one.

    `written_to` are values of a run's spec and record that hold addresses to which it writes, beside the home's own
    MLflow database.
    """
    mapping = path_map(home)
    if not mapping.former:
        return
    is_stale = any(True for _ in found_paths(list(written_to), mapping))
    if is_stale or refers_to_former_places(home.mlflow_database, mapping):
        place = mapping.former[-1]
        how = f"is a copy of {place}" if place.is_dir() else f"was moved from {place}"
        raise UserError(
            f"DITLAB_HOME={home.root} {how}, and its runs would still write there; run `ditlab runs relocate` once to "
            "make it a home of its own."
        )


def _recorded(home: Home) -> list[Path]:
    """Places of `places.json`; [] where it is missing, and with a warning, once a process, where it is damaged."""
    try:
        text = read_plain(home.places, MIB)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        return _damaged(home, first_line(error))
    try:
        content = parse_json(text)
    except ValueError as error:
        return _damaged(home, first_line(error))
    if has_checksum(text) and not is_intact(text):
        return _damaged(home, "its checksum is wrong")
    places = content.get("places") if isinstance(content, dict) else None
    if not isinstance(places, list) or not all(_is_path(place) for place in places):
        return _damaged(home, "it holds no list of folders")
    return [Path(place) for place in places]


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("/") and "\0" not in value


def _damaged(home: Home, reason: str) -> list[Path]:
    if home.places not in _said:
        _said.add(home.places)
        _log.warning(
            "%s is damaged (%s); whether this folder was moved or copied is known by MLflow's database alone",
            home.places, reason,
        )  # fmt: skip
    return []


def _write(home: Home, places: list[Path]) -> None:
    text = json.dumps({"places": [str(place) for place in places]}, indent=1)
    write_durably(home.places, add_checksum(text.encode()))


def _is_same(place: Path, root: Path) -> bool:
    try:
        return place == root or place.samefile(root)
    except OSError:
        return False
