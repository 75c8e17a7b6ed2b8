"""`ditlab runs query`: answers in SQL, over tables of records and of what the index of journals has
of each run.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import click

from ditlab.cli import options, output
from ditlab.cli.terminal import escape_line
from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.reports.formatting import terminal_table
from ditlab.runs.listing import run_row, with_index
from ditlab.tracking.index import Journal, JournalIndex, State, is_damage
from ditlab.tracking.names import as_count
from ditlab.tracking.records import RunRecord, scan_runs

RUNS = {
    "run": "TEXT",
    "name": "TEXT",
    "family": "TEXT",
    "status": "TEXT",
    "step": "INTEGER",
    "total_steps": "INTEGER",
    "created": "TEXT",
    "updated": "TEXT",
    "parameters": "INTEGER",
    "train_loss": "REAL",
    "main_metric": "TEXT",
    "main_value": "REAL",
    "protocol": "TEXT",
    "samples_per_second": "REAL",
    "sweep": "TEXT",
    "trial": "INTEGER",
    "message": "TEXT",
}
"""Columns of the table `runs` with their types.

`protocol` digests what `main_value` is measured with: values rank where it is equal, with
`main_metric`. `created` and `updated` are in UTC, `2026-11-26 20:15:07`.
"""
COLUMNS: Mapping[str, Iterable[str]] = {
    "runs": RUNS,
    "metrics": ("run", "metric", "step", "value", "time"),
    "specs": ("run", "field", "value"),
}
"""Columns of each table; `time` is in seconds since 1970, and a spec's `value` a number or a
text.
"""
_METRICS = """CREATE TEMP VIEW metrics AS
SELECT run, name AS metric, step, value, _points.time / 1000.0 AS time
FROM _points JOIN _journals ON _journals.id = journal JOIN _names ON _names.id = metric"""
_SPECS = """CREATE TEMP VIEW specs AS
SELECT run, key AS field, number(value) AS value FROM _journals, json_each(state, '$.params')
WHERE key NOT LIKE 'parameters.%' AND key != 'spec_hash' AND value != ''"""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")
_READING = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
_INTERRUPTIBLE = 100_000
"""Steps of SQLite's machine between two checks for Ctrl-C."""


@click.command()
@click.argument("sql", metavar="SQL")
@options.as_json
def query(sql: str, as_json: bool) -> None:
    """Answer SQL, one SELECT over the tables runs, metrics and specs of all runs in DITLAB_HOME.

    The three best runs of last week below two million parameters: "SELECT run, name, main_value
    FROM runs WHERE created > datetime('now', '-7 days') AND parameters < 2e6 ORDER BY main_value
    NULLS LAST LIMIT 3". SQLite reads it, in memory; it can write nothing. NaN, and what was not
    measured, is NULL, which SQLite sorts first by itself.

    \b runs: run, name, family, status, step, total_steps, created, updated, parameters, train_loss,
    main_metric,
      main_value, protocol, samples_per_second, sweep, trial, message
    metrics: run, metric, step, value, time
    specs: run, field, value

    Values of a metric rank only where `protocol` is equal: it digests what they are measured with.
    """
    answer = query_runs(Home.from_environment(), sql)
    columns = answer.columns
    if len(set(columns)) < len(columns):
        raise UserError(
            f"SQL gives two columns of one name ({', '.join(columns)}); rename one with AS."
        )
    kinds = {
        name: "number"
        if all(isinstance(row[place], int | float | None) for row in answer.rows)
        else "text"
        for place, name in enumerate(columns)
    }
    cells = ([escape_line(_shown(value)) for value in row] for row in answer.rows)
    output.console(as_json).print(terminal_table(kinds, cells))
    for note in answer.notes:
        output.say(note)
    rows = [dict(zip(columns, row, strict=True)) for row in answer.rows]
    output.emit({"columns": columns, "rows": rows}, as_json)
    first = rows[0].get("run") if rows else None
    if isinstance(first, str):  # SQL may call a number so
        output.hint(as_json, "runs show", first)
    else:
        output.hint(as_json, "runs")


def _shown(value: Any) -> str:
    """Return a cell for people."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


class QueryResult(NamedTuple):
    """Result of a question."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    notes: list[str]
    """Sentences on runs whose files cannot be read."""


def query_runs(home: Home, sql: str) -> QueryResult:
    """Answer one SELECT over the tables of COLUMNS. Raises UserError where SQLite refuses it, or it
    would write.

    NaN is NULL, as SQLite has no NaN: `value IS NULL` finds diverged points.
    """
    return with_index(home, lambda index: _answer(index, home, sql))


def _answer(index: JournalIndex, home: Home, sql: str) -> QueryResult:
    """Answer a question. Raises sqlite3.DatabaseError where the index is damaged."""
    notes = _load(index, home, {table for table in COLUMNS if table in sql.lower()})
    database = index.database
    database.set_authorizer(_authorise)
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
        raise UserError(
            f"SQL {sql[:200]!r} selects nothing; write one SELECT over {', '.join(COLUMNS)}."
        )
    return QueryResult([each[0] for each in cursor.description], rows, notes)


def _authorise(action: int, _first: str | None, function: str | None, *_place: str | None) -> int:
    """Allow reading alone: no ATTACH, no PRAGMA, no extensions."""
    is_reading = action in _READING and (function or "").lower() != "load_extension"
    if is_reading:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _load(index: JournalIndex, home: Home, wanted: Collection[str]) -> list[str]:
    """Make all tables, bring the wanted ones up to date, and return sentences on runs whose files
    cannot be read.
    """
    records = scan_runs(home).records if wanted else []
    if wanted:
        index.keep_only([record.run_id for record in records])
    journals = [
        Journal(one.run_id, node)
        for one in records
        for node in home.run(one.run_id).journal_nodes()
    ]
    states = index.update(journals)
    database = index.database
    database.create_function("number", 1, _number, deterministic=True)
    database.execute(_METRICS)
    database.execute(_SPECS)
    database.execute(
        f"CREATE TEMP TABLE runs ({', '.join(f'{name} {kind}' for name, kind in RUNS.items())})"
    )
    if "runs" in wanted:
        rows = [
            _row(database, record, states.get(Journal(record.run_id), {})) for record in records
        ]
        database.executemany(
            f"INSERT INTO runs VALUES ({', '.join(f':{name}' for name in RUNS)})", rows
        )
    return index.fault_notes()


def _row(database: sqlite3.Connection, record: RunRecord, state: State) -> dict[str, Any]:
    """Make a row of the table `runs`."""
    from ditlab.receipts.records import recorded_measurements  # imports NumPy

    row = run_row(database, record, state)
    main = row["main_metric"] or ""
    group = main.partition("/")[0]
    measured = recorded_measurements(state.get("tags", {}), group).get(group)
    return {
        **row,
        "run": record.run_id,
        "created": _moment(record.created),
        "updated": _moment(record.updated),
        "parameters": as_count(state.get("params", {}).get("parameters.total", "")),
        "protocol": measured.protocol(main) if measured else None,
        "sweep": record.parent or None,
        "trial": record.trial if record.trial >= 0 else None,
    }


def _moment(time: str) -> str:
    """Return a time of a record in SQLite's form: `2026-11-26 20:15:07`."""
    return time[:19].replace("T", " ")


def _number(text: str) -> str | int | float:
    """Return the number that a field's text is, as JSON writes numbers; another text as it is."""
    return json.loads(text) if _NUMBER.fullmatch(text) else text
