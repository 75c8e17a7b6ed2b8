"""Questions in SQL about the runs of a home: tables of records, and of what the index of journals has of each."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.tracking.history import MAIN_TAG, SPEED
from ditlab.tracking.index import Journal, JournalIndex, State, is_damage
from ditlab.tracking.journal import TRAIN_LOSS, recent_median
from ditlab.tracking.names import as_count
from ditlab.tracking.records import RunRecord, scan_runs

T = TypeVar("T")

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "run": "TEXT", "name": "TEXT", "family": "TEXT", "status": "TEXT", "step": "INTEGER", "total_steps": "INTEGER",
        "created": "TEXT", "updated": "TEXT", "parameters": "INTEGER", "train_loss": "REAL", "main_metric": "TEXT",
        "main_value": "REAL", "protocol": "TEXT", "samples_per_second": "REAL", "sweep": "TEXT", "trial": "INTEGER",
        "message": "TEXT",
    },
    "metrics": {"run": "TEXT", "metric": "TEXT", "step": "INTEGER", "value": "REAL", "time": "REAL"},
    "specs": {"run": "TEXT", "field": "TEXT", "value": ""},
}  # fmt: skip
"""Columns of each table with their types; '' holds numbers and texts.

`protocol` digests what `main_value` is measured with: values rank where it is equal, with `main_metric`.
`created` and `updated` are in UTC, `2026-11-26 20:15:07`; `time` is in seconds since 1970.
"""
LISTED = (
    "name", "family", "status", "step", "total_steps", "message", "train_loss", "main_metric", "main_value",
    "samples_per_second",
)  # fmt: skip
"""Columns of the list of runs."""
_METRICS = """CREATE TEMP VIEW metrics AS
SELECT run, name AS metric, step, value, _points.time / 1000.0 AS time
FROM _points JOIN _journals ON _journals.id = journal JOIN _names ON _names.id = metric"""
_SPECS = """CREATE TEMP VIEW specs AS
SELECT run, key AS field, number(value) AS value FROM _journals, json_each(state, '$.params')
WHERE key NOT LIKE 'parameters.%' AND key != 'spec_hash' AND value != ''"""
_VALUES = """SELECT step, value FROM _points
WHERE journal IN (SELECT id FROM _journals WHERE run = ?)
AND metric = (SELECT id FROM _names WHERE name = ?) ORDER BY journal, position"""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_INTERRUPTIBLE = 100_000
"""Steps of SQLite's machine between looks for Ctrl-C."""


class RunRows(NamedTuple):
    """Runs by column of the table `runs`."""

    rows: list[dict[str, Any]]
    notes: list[str]
    """Sentences on runs whose files cannot be read."""


class QueryResult(NamedTuple):
    """Result of a question."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    notes: list[str]
    """Sentences on runs whose files cannot be read."""


def query_runs(home: Home, sql: str) -> QueryResult:
    """Answer one SELECT over the tables of COLUMNS. Raises UserError where SQLite refuses it, or it would write.

    NaN is NULL, as SQLite has no NaN: `value IS NULL` finds diverged points.
    """
    return _with_index(home, lambda index: _answer(index, home, sql))


def run_rows(home: Home, records: Sequence[RunRecord]) -> RunRows:
    """Return what the list of runs shows of each record."""
    return _with_index(home, lambda index: _rows(index, home, records))


def _with_index(home: Home, read: Callable[[JournalIndex], T]) -> T:
    """Read from a home's index, and once more from one in memory where its file is damaged."""
    index = JournalIndex(home)
    try:
        return read(index)
    except sqlite3.DatabaseError as error:
        index.recover(error)
    return read(index)


def _rows(index: JournalIndex, home: Home, records: Sequence[RunRecord]) -> RunRows:
    states = index.update([Journal(record.run_id) for record in records])
    rows = []
    for record in records:
        row = _run_row(index.database, record, states.get(Journal(record.run_id), {}))
        rows.append({"run_id": record.run_id, **{name: row[name] for name in LISTED}, "created": record.created})
    return RunRows(rows, _faults(index, home))


def _answer(index: JournalIndex, home: Home, sql: str) -> QueryResult:
    """Answer a question. Raises sqlite3.DatabaseError where the index is damaged."""
    notes = _load(index, home, {table for table in COLUMNS if table in sql.lower()})
    database = index.database
    database.set_authorizer(lambda action, first, second, *_: _authorise(action, second))
    database.set_progress_handler(lambda: 0, _INTERRUPTIBLE)
    try:
        cursor = database.execute(sql)
        rows = cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning) as error:
        if is_damage(error):
            raise
        if "interrupted" in str(error):  # by Ctrl-C
            raise KeyboardInterrupt from None
        tables = "; ".join(f"{table} ({', '.join(fields)})" for table, fields in COLUMNS.items())
        raise UserError(
            f"SQL {sql[:200]!r} is refused ({first_line(error)}); write one SELECT over {tables}."
        ) from None
    if cursor.description is None:
        raise UserError(f"SQL {sql[:200]!r} selects nothing; write one SELECT over {', '.join(COLUMNS)}.")
    return QueryResult([each[0] for each in cursor.description], rows, notes)


def _authorise(action: int, function: str | None) -> int:
    """Allow reading alone: no ATTACH, no PRAGMA, no extensions."""
    is_reading = action in _READING and (function or "").lower() != "load_extension"
    return sqlite3.SQLITE_OK if is_reading else sqlite3.SQLITE_DENY


def _load(index: JournalIndex, home: Home, wanted: Collection[str]) -> list[str]:
    """Bring the wanted tables up to date; returns sentences on runs whose files cannot be read."""
    records = scan_runs(home).records if wanted else []
    if wanted:
        index.keep_only([record.run_id for record in records])
    journals = [Journal(one.run_id, node) for one in records for node in home.run(one.run_id).journal_nodes()]
    states = index.update(journals)
    notes = _faults(index, home)
    database = index.database
    database.create_function("number", 1, _number, deterministic=True)
    database.execute(_METRICS)
    database.execute(_SPECS)
    types = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS["runs"].items())
    database.execute(f"CREATE TEMP TABLE runs ({types})")
    if "runs" in wanted:
        rows = []
        for record in records:
            state = states.get(Journal(record.run_id), {})
            row = _run_row(database, record, state)
            row["protocol"] = protocol_of(row["main_metric"] or "", state.get("tags", {})) or None
            rows.append([row[name] for name in COLUMNS["runs"]])
        database.executemany(f"INSERT INTO runs VALUES ({', '.join('?' * len(COLUMNS['runs']))})", rows)
    return notes


def _faults(index: JournalIndex, home: Home) -> list[str]:
    return [
        f"run {run_id}: {home.run(run_id).journal} cannot be read ({first_line(error)})"
        for run_id, error in index.faults.items()
    ]


def _run_row(database: sqlite3.Connection, record: RunRecord, state: State) -> dict[str, Any]:
    """Make a row of the table `runs`, by column, without `protocol`: a list of runs needs none of its libraries."""
    tags = state.get("tags", {})
    main = tags.get(MAIN_TAG)
    losses = _values(database, record.run_id, TRAIN_LOSS)
    loss = recent_median({step: math.nan if value is None else value for step, value in losses})
    measured = _values(database, record.run_id, main)
    speeds = [value for _, value in _values(database, record.run_id, SPEED) if value is not None]
    return {
        "run": record.run_id,
        "name": record.name,
        "family": record.family,
        "status": record.status,
        "step": max([record.step, *(step for step, _ in losses[-1:])]),
        "total_steps": record.total_steps,
        "created": record.created[:19].replace("T", " "),
        "updated": record.updated[:19].replace("T", " "),
        "parameters": as_count(state.get("params", {}).get("parameters.total", "")),
        "train_loss": loss,
        "main_metric": main,
        "main_value": measured[-1][1] if measured else None,
        "samples_per_second": statistics.median(speeds) if speeds else None,
        "sweep": record.parent or None,
        "trial": record.trial if record.trial >= 0 else None,
        "message": record.message,
    }


def _values(database: sqlite3.Connection, run_id: str, metric: str | None) -> list[tuple[int, float | None]]:
    """Return steps and values of a metric in the order they were logged; None for NaN."""
    return database.execute(_VALUES, (run_id, metric)).fetchall()


def protocol_of(metric: str, tags: Mapping[str, str]) -> str:
    """Return the digest by which values of a metric rank, from a run's tags; empty where none is recorded."""
    from ditlab.receipts.records import TAG_PREFIX, Measurement  # imports NumPy

    found = Measurement.parse(tags.get(f"{TAG_PREFIX}{metric.partition('/')[0]}", ""))
    return found.protocol(metric) if found else ""


def _number(text: str) -> str | int | float:
    """Return the number that a field's text is, as JSON writes numbers; another text as it is."""
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def shown(value: Any) -> str:
    """A cell for people."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def as_records(answer: QueryResult) -> Sequence[dict[str, Any]]:
    """Rows as objects, infinities as null: JSON has none."""
    return [
        {name: value if not isinstance(value, float) or math.isfinite(value) else None
         for name, value in zip(answer.columns, row, strict=True)}
        for row in answer.rows
    ]  # fmt: skip
