"""Absolute paths in MLflow's local database: found, and mapped in one transaction after a backup.

MLflow writes the artifact folder of every experiment and run into its tables, as an absolute path. Only schema versions
whose tables were read for such columns are changed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ditlab.errors import UserError, first_line
from ditlab.storage.files import sync_file, sync_folder
from ditlab.storage.plain_files import check_plain
from ditlab.tracking.database_damage import REFILL, open_database
from ditlab.tracking.relocation.path_map import PathMap

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
