"""Rows of the list of runs, from their records and the index of journals."""

from __future__ import annotations

import math
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ditlab.home import Home
from ditlab.tracking.history import MAIN_TAG, SPEED
from ditlab.tracking.index import Journal, JournalIndex, State
from ditlab.tracking.journal import TRAIN_LOSS, recent_median
from ditlab.tracking.records import RunRecord

T = TypeVar("T")

_VALUES = """SELECT step, value FROM _points
WHERE journal IN (SELECT id FROM _journals WHERE run = ?)
AND metric = (SELECT id FROM _names WHERE name = ?) ORDER BY journal, position"""


class RunRows(NamedTuple):
    """Rows of runs."""

    rows: list[dict[str, Any]]
    """Results of `run_row`."""
    notes: list[str]
    """Sentences on runs whose files cannot be read."""


def run_rows(home: Home, records: Sequence[RunRecord]) -> RunRows:
    """Return what the list of runs shows of each record."""
    return with_index(home, lambda index: _rows(index, records))


def with_index(home: Home, read: Callable[[JournalIndex], T]) -> T:
    """Read from a home's index, and once more from one in memory where its file is damaged."""
    index = JournalIndex(home)
    try:
        return read(index)
    except sqlite3.DatabaseError as error:
        index.recover(error)
    return read(index)


def _rows(index: JournalIndex, records: Sequence[RunRecord]) -> RunRows:
    states = index.update([Journal(record.run_id) for record in records])
    rows = [
        run_row(index.database, record, states.get(Journal(record.run_id), {}))
        for record in records
    ]
    return RunRows(rows, index.fault_notes())


def run_row(database: sqlite3.Connection, record: RunRecord, state: State) -> dict[str, Any]:
    """Return what the list of runs shows of a record, by the keys of `--json`, from an index and
    its state of the run's journal."""
    main = state.get("tags", {}).get(MAIN_TAG)
    losses = _values(database, record.run_id, TRAIN_LOSS)
    measured = _values(database, record.run_id, main)
    speeds = [value for _, value in _values(database, record.run_id, SPEED) if value is not None]
    main_value = None
    if measured:
        main_value = measured[-1][1]
    return {
        "run_id": record.run_id,
        "name": record.name,
        "family": record.family,
        "status": record.status,
        "step": max([record.step, *(step for step, _ in losses[-1:])]),
        "total_steps": record.total_steps,
        "message": record.message,
        "train_loss": recent_median(
            {step: math.nan if value is None else value for step, value in losses}
        ),
        "main_metric": main,
        "main_value": main_value,
        "samples_per_second": statistics.median(speeds) if speeds else None,
        "created": record.created,
    }


def _values(
    database: sqlite3.Connection, run_id: str, metric: str | None
) -> list[tuple[int, float | None]]:
    """Return steps and values of a metric in the order they were logged; None for NaN."""
    return database.execute(_VALUES, (run_id, metric)).fetchall()
