"""Runs and lists of runs as notebooks show them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from markupsafe import Markup

from ditlab.api.run import FoundRuns, Run
from ditlab.api.training import TrainingResult
from ditlab.cli.output import short_path
from ditlab.errors import UserError, first_line
from ditlab.home import RunFolder
from ditlab.runs.listing import run_rows
from ditlab.runs.locks import is_locked
from ditlab.storage.plain_files import MIB, is_relative, read_plain, stays_below
from ditlab.tracking.journal import JournalContent, read_content
from ditlab.tracking.records import RunRecord, read_record
from ditlab_addons.notebook.html import (
    card,
    code,
    fold_spec,
    paragraph,
    picture,
    shown,
    status,
    table,
)
from ditlab_addons.notebook.specs import differing_fields

MOST_RUNS = 30
"""Rows of a table of runs."""
MOST_METRICS = 200
_MOST_PICTURE = 8 * MIB
_MOST_TEXT = 4000  # bytes
_ELSEWHERE = ("system/", "time/", "perf/")
"""Metrics of the machine, and those of the table of times."""


def result_page(result: TrainingResult) -> str:
    """The page of the run that a training has ended."""
    return run_page(result.run)


def run_page(run: Run) -> str:
    """Status, last metrics, last samples, how to go on, and the spec on request."""
    notes: list[str] = []

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        try:
            yield
        except (UserError, OSError, ValueError) as error:
            notes.append(f"{what} cannot be read ({first_line(error)}).")

    record = run.record
    content = JournalContent()
    with noted("the run's record"):
        record = read_record(run.folder)
    with noted("the journal"), suppress(FileNotFoundError):  # of a run that has just been made
        content = read_content(run.folder.journal)
    if content.num_damaged:
        notes.append(
            f"{run.folder.journal}: damaged lines are skipped here ({content.num_damaged:,})."
        )
    is_training = is_locked(run.folder)
    state = status(record.status)
    if record.status == "running":
        trains = "a process trains it now"
        if not is_training:
            trains = "no process trains it on this machine"
        state += shown(f", {trains}")
    begun = Markup("{}, step {}, begun {}").format(state, _steps(record), _moment(record.created))
    parts = [paragraph(begun)]
    if record.message:
        parts.append(paragraph(shown(record.message, 600)))
    if record.status in ("interrupted", "failed", "running") and not is_training:
        command = f"ditlab train {short_path(run.folder.spec)} --resume {record.run_id}"
        parts.append(paragraph("To go on from the last checkpoint, in Python or in a terminal:"))
        parts.append(code(f'ditlab.train(run.spec, resume="{record.run_id}")\n{command}'))
    with noted("the last samples"):
        parts += _last_samples(run.folder, content)
    metrics = [
        [name, points.values[-1], points.steps[-1]]
        for name, points in sorted(content.metrics.items())
        if not name.startswith(_ELSEWHERE)
    ]
    if metrics:
        parts.append(table(["metric", "last value", "step"], metrics[:MOST_METRICS]))
    with noted("the spec"):
        parts.append(fold_spec(differing_fields(run.spec)))
    parts += [paragraph(Markup("<i>{}</i>").format(shown(note, 600))) for note in notes]
    return card(record.name, f"run {record.run_id} of the family {record.family}", parts)


def runs_page(runs: FoundRuns) -> str:
    """A row a run, the newest first: at most 30."""
    rows: list[list[object]] = []
    for run in runs[:MOST_RUNS]:
        record = run.record
        (row,) = run_rows(run.home, [record]).rows
        value = row["main_value"]
        held_out = ""
        if value is not None:
            held_out = f"{row['main_metric'].removeprefix('eval/')} {value:.4g}"
        loss = None if math.isnan(row["train_loss"]) else row["train_loss"]
        rows.append(
            [
                record.name,
                record.run_id,
                record.family,
                status(record.status),
                _steps(record),
                loss,
                held_out,
                _moment(record.created),
            ]
        )
    left = len(runs) - len(rows)
    caption = f"{len(runs):,} run{'s' * (len(runs) != 1)}"
    if left:
        caption += f", {left:,} older ones not shown"
    columns = ["name", "id", "family", "status", "step", "training loss", "held out", "created"]
    return card("Runs", caption, [table(columns, rows)] if rows else [])


def _last_samples(run: RunFolder, content: JournalContent) -> list[Markup]:
    """The newest picture that the journal names, or the text beside it."""
    images = (
        event for event in content.events if event["kind"] == "image" and event["key"] == "samples"
    )
    newest = max(images, key=lambda event: event["step"], default=None)
    if newest is None:
        return []
    path = run.path / newest["path"]
    step = newest["step"]
    if not is_relative(newest["path"]) or not stays_below(run.path, path):
        raise ValueError("their path leads out of the run's folder")
    text = path.with_suffix(".txt")
    if text.exists():
        found = code(read_plain(text, MIB).decode(errors="replace")[:_MOST_TEXT])
    else:
        png = read_plain(path, _MOST_PICTURE)
        if not png.startswith(b"\x89PNG\r\n\x1a\n"):
            raise ValueError(f"{path.name} is no PNG")
        found = picture(png, f"samples of run {run.run_id} at step {step}")
    return [paragraph(f"Samples at step {step:,}:"), found]


def _steps(record: RunRecord) -> str:
    if record.total_steps:
        return f"{record.step:,} of {record.total_steps:,}"
    return f"{record.step:,}"


def _moment(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"
