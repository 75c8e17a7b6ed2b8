"""Questions in SQL about the runs of a home: tables of records, specs and points, which the index of journals holds."""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.spec.yaml_text import read_recorded
from ditlab.tracking.history import MAIN_TAG
from ditlab.tracking.index import POINTS, Journal, JournalIndex, State, is_damage, remove
from ditlab.tracking.names import as_count, flatten
from ditlab.tracking.records import RunRecord, scan_runs

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
_METRICS = """CREATE TEMP VIEW metrics AS
SELECT run, name AS metric, step, value, points.time / 1000.0 AS time
FROM points JOIN journals ON journals.id = journal JOIN names ON names.id = metric"""
_SPECS = """CREATE TEMP VIEW specs AS
SELECT run, key AS field, fields.value AS value FROM main.specs, json_each(main.specs.fields) AS fields"""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,2})?")
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_INTERRUPTIBLE = 100_000
"""Steps of SQLite's machine between looks for Ctrl-C."""


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
    try:
        return _answer(JournalIndex(home), home, sql)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        remove(home)
    return _answer(JournalIndex(home, in_memory=True), home, sql)


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
        if isinstance(error, sqlite3.Error) and is_damage(error):
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
    notes: list[str] = []
    summaries: Mapping[Journal, State] = {}
    if "runs" in wanted or "metrics" in wanted:
        index.keep_only([record.run_id for record in records])
        journals = [Journal(one.run_id, node) for one in records for node in home.run(one.run_id).journal_nodes()]
        faults: dict[str, OSError] = {}
        summaries = index.update(POINTS, journals, faults)
        for run_id, error in faults.items():
            notes.append(f"run {run_id}: {home.run(run_id).journal} cannot be read ({first_line(error)})")
    if "specs" in wanted:
        notes += _load_specs(index.database, home, [record.run_id for record in records])
    database = index.database  # only now: a damaged index has been replaced by one in memory
    types = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS["runs"].items())
    database.execute(f"CREATE TEMP TABLE runs ({types})")
    rows = [_run_row(record, summaries.get(Journal(record.run_id), {})) for record in records]
    database.executemany(f"INSERT INTO runs VALUES ({', '.join('?' * len(COLUMNS['runs']))})", rows)
    database.execute(_METRICS)
    database.execute(_SPECS)
    return notes


def _load_specs(database: sqlite3.Connection, home: Home, run_ids: Sequence[str]) -> list[str]:
    """Read the specs that have changed: YAML takes 9 ms a spec on two cores."""
    known = dict(database.execute("SELECT run, stamp FROM specs"))
    stamps: dict[str, str] = {}
    notes = []
    changed = []
    for run_id in run_ids:
        folder = home.run(run_id)
        try:
            state = folder.spec.stat()
            stamps[run_id] = f"{state.st_ino} {state.st_size} {state.st_ctime_ns}"
            if known.get(run_id) != stamps[run_id]:
                changed.append((run_id, stamps[run_id], _fields(folder)))
        except (UserError, OSError, ValueError) as error:
            notes.append(f"run {run_id}: {first_line(error)}")
    database.executemany("INSERT OR REPLACE INTO specs VALUES (?, ?, ?)", changed)
    gone = [(run_id,) for run_id in known if run_id not in stamps]
    database.executemany("DELETE FROM specs WHERE run = ?", gone)
    return notes


def _fields(folder: RunFolder) -> str:
    return json.dumps({name: _number(text) for name, text in flatten(read_recorded(folder.spec)).items()})


def _run_row(record: RunRecord, summary: State) -> tuple[Any, ...]:
    texts = summary.get("texts", {})
    main = texts.get(MAIN_TAG)
    return (
        record.run_id, record.name, record.family, record.status, record.step, record.total_steps,
        *(text[:19].replace("T", " ") for text in (record.created, record.updated)),
        as_count(texts.get("parameters.total", "")), summary.get("loss"), main, summary.get("main"),
        protocol_of(main or "", texts) or None, summary.get("speed"),
        record.parent or None, record.trial if record.trial >= 0 else None, record.message,
    )  # fmt: skip


def protocol_of(metric: str, tags: Mapping[str, str]) -> str:
    """Return the digest by which values of a metric rank, from a run's tags; empty where none is recorded."""
    from ditlab.receipts.records import TAG_PREFIX, Measurement  # imports NumPy

    found = Measurement.parse(tags.get(f"{TAG_PREFIX}{metric.partition('/')[0]}", ""))
    return found.protocol(metric) if found else ""


def _number(text: str) -> str | int | float:
    """Return the number that a field's text is, as JSON writes numbers; another text as it is."""
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def schema_lines() -> Iterator[str]:
    """A line for each table: its name and its columns."""
    for table, fields in COLUMNS.items():
        yield f"{table}: {', '.join(fields)}"


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
