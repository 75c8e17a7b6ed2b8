"""Questions in SQL about the runs of a home: tables made of records, specs and journals, in a database in memory.

The points and the spec's fields of a run that has ended are kept as Parquet beside its journal, and read from there
while the digests of journal and spec are those of the file's making. A file that is torn, or of another journal, is
made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.receipts.records import TAG_PREFIX, Measurement
from ditlab.spec.yaml_text import read_recorded
from ditlab.storage.files import replacing
from ditlab.tracking.history import MAIN_TAG, SPEED, Series, series_of
from ditlab.tracking.journal import TRAIN_LOSS, read_content
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
KEPT = "journal.parquet"
"""Name of the file in a run's folder."""
_JOURNAL_KEY, _SPEC_KEY, _FACTS, _FIELDS = b"ditlab.journal.2", b"ditlab.spec", b"ditlab.facts", b"ditlab.fields"
_UNUSABLE = (OSError, pa.ArrowException, KeyError, ValueError)
"""Errors of a file that is missing, torn or of another kind."""
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})(\.\d+)?([eE][+-]?\d{1,3})?")
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_INTERRUPTIBLE = 100_000
"""Steps of SQLite's machine between looks for Ctrl-C."""


class QueryResult(NamedTuple):
    """Result of a question."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    notes: list[str]
    """Sentences on runs whose files cannot be read."""


class _Points(NamedTuple):
    """Points of a run's metrics, (num,) each but `facts`."""

    metric: np.ndarray
    step: np.ndarray
    value: np.ndarray
    time: np.ndarray
    """Milliseconds since 1970."""
    facts: dict[str, str]
    """Name of the main metric, what it is measured with, and number of parameters, as the journal has them."""


def query_runs(home: Home, sql: str) -> QueryResult:
    """Answer one SELECT over the tables of COLUMNS. Raises UserError where SQLite refuses it, or it would write.

    NaN is NULL, as SQLite has no NaN: `value IS NULL` finds diverged points.
    """
    notes: list[str] = []
    wanted = {table for table in COLUMNS if table in sql.lower()}
    with closing(sqlite3.connect(":memory:")) as database:
        for table in COLUMNS:
            fields = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS[table].items())
            database.execute(f"CREATE TABLE {table} ({fields})")
        for record in scan_runs(home).records if wanted else ():
            _load(database, home.run(record.run_id), record, wanted, notes)
        database.set_authorizer(lambda action, first, second, *_: _authorise(action, second))
        database.set_progress_handler(lambda: 0, _INTERRUPTIBLE)
        try:
            cursor = database.execute(sql)
            rows = cursor.fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
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


def _load(
    database: sqlite3.Connection, folder: RunFolder, record: RunRecord, wanted: set[str], notes: list[str]
) -> None:
    """Put a run into the wanted tables."""
    points = None
    if wanted & {"runs", "metrics"} or (record.status != "running" and not (folder.path / KEPT).exists()):
        try:
            points = _points(folder, record)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                notes.append(f"run {record.run_id}: {folder.journal} cannot be read ({first_line(error)})")
    if "specs" in wanted:
        fields: dict[str, str] = {}
        try:
            fields = _fields(folder, record)
        except (UserError, OSError, ValueError) as error:
            notes.append(f"run {record.run_id}: {first_line(error)}")
        specs = [(record.run_id, name, _number(text)) for name, text in fields.items()]
        database.executemany("INSERT INTO specs VALUES (?, ?, ?)", specs)
    if "runs" in wanted:
        database.execute(f"INSERT INTO runs VALUES ({', '.join('?' * len(COLUMNS['runs']))})", _run_row(record, points))
    if "metrics" in wanted and points:
        columns = (points.metric, points.step, points.value, points.time / 1000)
        rows = zip(repeat(record.run_id), *(each.tolist() for each in columns), strict=False)
        database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?)", rows)


def _run_row(record: RunRecord, points: _Points | None) -> tuple[Any, ...]:
    facts = points.facts if points else {}
    main = facts.get(MAIN_TAG)

    def series(name: str) -> Series:
        at = points.metric == name if points else np.zeros(0, bool)
        return Series(points.step[at], points.value[at], points.time[at]) if points else Series()

    held_out, speed = series(main or ""), series(SPEED).values
    loss = series(TRAIN_LOSS).recent_median()
    return (
        record.run_id, record.name, record.family, record.status, record.step, record.total_steps,
        *(text[:19].replace("T", " ") for text in (record.created, record.updated)),
        as_count(facts.get("parameters.total", "")), None if math.isnan(loss) else loss, main,
        float(held_out.values[-1]) if len(held_out.values) else None,
        protocol_of(main or "", facts) or None,
        float(np.median(speed)) if len(speed) else None,
        record.parent or None, record.trial if record.trial >= 0 else None, record.message,
    )  # fmt: skip


def protocol_of(metric: str, tags: Mapping[str, str]) -> str:
    """Return the digest by which values of a metric rank, from a run's tags; empty where none is recorded."""
    found = Measurement.parse(tags.get(f"{TAG_PREFIX}{metric.partition('/')[0]}", ""))
    return found.protocol(metric) if found else ""


def _number(text: str) -> str | int | float:
    """Return the number that a field's text is, as JSON writes numbers; another text as it is."""
    return json.loads(text) if _NUMBER.fullmatch(text) else text


def _fields(folder: RunFolder, record: RunRecord) -> dict[str, str]:
    """Fields of a run's spec; of one that has ended from the Parquet file: YAML takes 9 ms a spec on two cores."""
    if record.status != "running":
        with suppress(*_UNUSABLE):
            about = parquet.read_metadata(folder.path / KEPT).metadata or {}
            if about[_SPEC_KEY] == _digest(folder.spec):
                return dict(json.loads(about[_FIELDS]))
    return flatten(read_recorded(folder.spec))


def _points(folder: RunFolder, record: RunRecord) -> _Points:
    """Read a run's points: of one that has ended from the Parquet file, which is made where it is missing."""
    if record.status == "running":
        return _from_journal(folder)
    kept, key = folder.path / KEPT, b" ".join(map(_digest, _journals(folder)))
    with suppress(*_UNUSABLE), parquet.ParquetFile(kept) as file:
        if (file.schema_arrow.metadata or {}).get(_JOURNAL_KEY) == key:
            return _from_table(file.read())
    points, about = _from_journal(folder), {_JOURNAL_KEY: key}
    with suppress(UserError, OSError, ValueError):  # a spec that cannot be read gets its sentence from `_fields`
        about |= {_SPEC_KEY: _digest(folder.spec), _FIELDS: json.dumps(flatten(read_recorded(folder.spec))).encode()}
    with suppress(OSError):  # a home that is read only: each question reads the journal
        _keep(points, kept, about)
    return points


def _journals(folder: RunFolder) -> list[Path]:
    """The journals of all nodes, the run's own first."""
    return list(map(folder.node_journal, folder.journal_nodes()))


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def _from_journal(folder: RunFolder) -> _Points:
    contents = list(map(read_content, _journals(folder)))
    history = [item for content in contents for item in series_of(content).items()]
    facts: dict[str, str] = {}
    kept = (MAIN_TAG, "parameters.total", *(f"{TAG_PREFIX}{group}" for group in ("eval", "quality")))
    for event in contents[0].events:
        if event["kind"] in ("tags", "params"):
            facts |= {name: text for name, text in event["values"].items() if name in kept}
    names = np.repeat(np.array([name for name, _ in history], dtype=object), [len(each.steps) for _, each in history])
    every = [*(each for _, each in history), Series()]
    steps, values, times = (
        np.concatenate([getattr(each, part) for each in every]) for part in ("steps", "values", "times")
    )
    return _Points(names, steps, values, times, facts)


def _keep(points: _Points, path: Path, about: Mapping[bytes, bytes]) -> None:
    table = pa.table(
        {
            "metric": pa.array(points.metric.tolist(), pa.string()).dictionary_encode(),
            "step": pa.array(points.step, pa.int64()),
            "value": pa.array(points.value, pa.float64()),
            "time": pa.array(points.time, pa.int64()),
        }
    )
    with replacing(path, durable=False) as file:
        parquet.write_table(table.replace_schema_metadata({**about, _FACTS: json.dumps(points.facts).encode()}), file)


def _from_table(table: pa.Table) -> _Points:
    metric = table["metric"].cast(pa.string()).to_numpy(zero_copy_only=False)
    step, value, time = (table[name].to_numpy() for name in ("step", "value", "time"))
    return _Points(metric, step, value, time, json.loads((table.schema.metadata or {})[_FACTS]))


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
