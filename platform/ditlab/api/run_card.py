"""A run, and a list of runs, as notebooks show them. A damaged file costs what it holds, and a sentence says so."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from markupsafe import Markup

from ditlab.errors import UserError, first_line
from ditlab.home import RunFolder
from ditlab.notebook_html import card, code, fold, paragraph, picture, shown, status, table
from ditlab.reports.time_summary import TimeSummary
from ditlab.runs.description import run_time
from ditlab.runs.locks import is_locked
from ditlab.spec.cards import differing_table, spec_fields
from ditlab.spec.experiment import Experiment
from ditlab.storage.plain_files import MIB, is_relative, read_plain, stays_below
from ditlab.tracking.journal import JournalContent, read_content, recent_metrics
from ditlab.tracking.records import RunRecord, read_record

MOST_RUNS = 30
MOST_METRICS = 200
_MOST_PICTURE = 8 * MIB
_MOST_TEXT = 2000  # characters
_ELSEWHERE = ("system/", "time/", "perf/")
"""Metrics of the machine, and those of the table of times."""
_PNG = b"\x89PNG\r\n\x1a\n"
_OPEN = ("interrupted", "failed", "running")
"""Statuses of a run that can go on."""


class ShownRun(Protocol):
    """A run, as far as it is shown."""

    @property
    def folder(self) -> RunFolder: ...

    @property
    def record(self) -> RunRecord: ...

    @property
    def spec(self) -> Experiment:
        """The experiment. Raises UserError where it cannot be read."""


class LastSamples(NamedTuple):
    """Samples that were drawn during training."""

    step: int
    text: str
    """Empty for samples that are pictures."""
    png: bytes


def run_card(run: ShownRun) -> Markup:
    """Status, last metrics, last samples, how to go on, and the spec on request."""
    notes: list[str] = []
    record = _record(run, notes)
    content = _content(run, notes)
    parts = [*_sentences(run, record), *_samples(run, content, notes)]
    metrics = [[name, points.values[-1], content.steps[points.rows[-1]]] for name, points in content.metrics.items()]
    metrics = sorted((row for row in metrics if not str(row[0]).startswith(_ELSEWHERE)), key=lambda row: str(row[0]))
    if metrics:
        parts.append(table(["metric", "last value", "step"], metrics[:MOST_METRICS]))
    if times := run_time(content):
        parts.append(fold(times.heading(), _times(times)))
    parts.append(_spec(run, notes))
    parts += [paragraph(Markup("<i>{}</i>").format(shown(note, 600))) for note in notes]
    return card(record.name, f"run {record.run_id} of the family {record.family}", parts)


def _times(times: TimeSummary) -> Markup:
    """Where the time went, by phase."""
    rows = [[each.name, each.seconds, f"{each.share:.1%}", each.step_ms] for each in times.shares()]
    sentences = Markup("").join(map(paragraph, times.sentences()))
    return table(["phase", "seconds", "share", "ms a step"], rows) + sentences


def runs_table(runs: Sequence[ShownRun]) -> Markup:
    """A row a run, the newest first: at most 30."""
    rows = list(_rows(runs[:MOST_RUNS]))
    left = len(runs) - len(rows)
    caption = f"{len(runs):,} run{'' if len(runs) == 1 else 's'}" + (f", {left:,} older ones not shown" if left else "")
    columns = ["name", "id", "family", "status", "step", "train/loss", "held out", "created"]
    return card("Runs", caption, [table(columns, rows)] if rows else [])


def _rows(runs: Iterable[ShownRun]) -> Iterator[list[object]]:
    for run in runs:
        record = run.record
        latest = recent_metrics(run.folder).latest
        # Held-out value of the heaviest loss component, else the first that was logged.
        measured = [name for name in latest if name.startswith("eval/")]
        try:
            weights = run.spec.objective.weights.model_dump()
        except (UserError, OSError):
            weights = {}
        heaviest = sorted(weights, key=lambda name: -weights[name])
        held_out = next((f"eval/{name}" for name in heaviest if f"eval/{name}" in measured), next(iter(measured), None))
        evaluated = "" if held_out is None else f"{held_out.removeprefix('eval/')} {latest[held_out]:.4g}"
        yield [record.name, record.run_id, record.family, status(record.status), _steps(record),
               latest.get("train/loss"), evaluated, _moment(record.created)]  # fmt: skip


def _record(run: ShownRun, notes: list[str]) -> RunRecord:
    """The record as it is now, else as it was when the run was opened."""
    try:
        return read_record(run.folder)
    except (UserError, OSError) as error:
        notes.append(str(error))
        return run.record


def _content(run: ShownRun, notes: list[str]) -> JournalContent:
    try:
        content = read_content(run.folder.journal)
    except FileNotFoundError:
        return JournalContent()
    except (OSError, ValueError) as error:
        notes.append(f"{run.folder.journal} cannot be read ({first_line(error)}).")
        return JournalContent()
    if content.num_damaged:
        lines = "1 damaged line" if content.num_damaged == 1 else f"{content.num_damaged:,} damaged lines"
        notes.append(f"{run.folder.journal} has {lines}, passed over here.")
    return content


def _sentences(run: ShownRun, record: RunRecord) -> Iterator[Markup]:
    """Status and steps, why the run ended, and what can be done with it."""
    is_training = is_locked(run.folder)
    state = status(record.status)
    if record.status == "running":
        state += shown(", a process trains it now" if is_training else ", no process trains it on this machine")
    yield paragraph(Markup("{}, step {}, begun {}").format(state, _steps(record), _moment(record.created)))
    if record.message:
        yield paragraph(shown(record.message, 600))
    if record.status in _OPEN and not is_training:
        spec = run.folder.spec
        shortest = spec.relative_to(Path.cwd()) if spec.is_relative_to(Path.cwd()) else spec
        command = f"ditlab train {shlex.quote(str(shortest))} --resume {record.run_id}"
        yield paragraph("To go on from the last checkpoint, in Python or in a terminal:")
        yield code(f'ditlab.train(run.spec, resume="{record.run_id}")\n{command}')
    elif record.step:
        yield paragraph("Next: run.sample(16), run.plot(), run.evaluate(), run.figures().kinds, run.export(folder).")


def _samples(run: ShownRun, content: JournalContent, notes: list[str]) -> Iterator[Markup]:
    try:
        found = _last_samples(run.folder.path, content)
    except (OSError, ValueError) as error:
        notes.append(f"the last samples cannot be read ({first_line(error)}).")
        return
    if found is None:
        return
    yield paragraph(f"Samples at step {found.step:,}:")
    if found.text:
        yield code(found.text)
    else:
        yield picture(found.png, f"samples of run {run.folder.run_id} at step {found.step}")


def _last_samples(folder: Path, content: JournalContent) -> LastSamples | None:
    """The newest picture that the journal names, or the text beside it."""
    images = [event for event in content.events if event["kind"] == "image" and event["key"] == "samples"]
    if not images:
        return None
    newest = max(images, key=lambda event: event["step"])
    if not is_relative(newest["path"]) or not stays_below(folder, folder / newest["path"]):
        raise ValueError("their path leads out of the run's folder")
    path = folder / newest["path"]
    try:
        text = read_plain(path.with_suffix(".txt"), MIB).decode(errors="replace")[: 2 * _MOST_TEXT]
    except OSError:
        text = ""
    if text:
        return LastSamples(newest["step"], text, b"")
    png = read_plain(path, _MOST_PICTURE)
    if not png.startswith(_PNG):
        raise ValueError(f"{path.name} is no PNG")
    return LastSamples(newest["step"], "", png)


def _spec(run: ShownRun, notes: list[str]) -> Markup:
    try:
        fields = [field for field in spec_fields(run.spec) if field.path != "name"]
    except (UserError, OSError) as error:
        notes.append(first_line(error))
        return Markup("")
    return fold("spec", differing_table(fields))


def _steps(record: RunRecord) -> str:
    return f"{record.step:,} of {record.total_steps:,}" if record.total_steps else f"{record.step:,}"


def _moment(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M}"
