"""Content of a run's page, from the files of its folder; each part that is missing or damaged costs itself alone."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ditlab.checkpoints.manifest import committed
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.reports.run.records import DataFacts, ReportedEvent, RunContent
from ditlab.runs.events import EventReader
from ditlab.runs.locks import is_locked
from ditlab.runs.report.attempts import attempts_of
from ditlab.runs.report.changes import spec_changes
from ditlab.runs.report.pictures import PictureSource, figures_of, samples_of
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.recorded import load_recorded_experiment
from ditlab.storage.local import LocalFiles
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.tracking.journal.content import JournalContent
from ditlab.tracking.journal.history import series_of
from ditlab.tracking.journal.side_index import damaged_lines, read_content
from ditlab.tracking.records import read_record
from ditlab.tracking.run_record import RunRecord


@dataclass(frozen=True)
class ReportSource:
    """A run whose page is made, and what the caller knows of it already."""

    home: Home
    folder: RunFolder
    record: RunRecord
    experiment: Experiment | None = None
    """The run's spec; None: it is read from the run's folder."""
    content: JournalContent | None = None
    """The journal's content; None: it is read."""
    ended: str = ""
    """Status of a run that ends in this moment, before its record says so."""


def report_source(home: Home, folder: RunFolder, **known: Any) -> ReportSource:
    """The source of a run's page. Raises UserError where its record cannot be read."""
    return ReportSource(home, folder, read_record(folder), **known)


def collect(source: ReportSource, pictures: PictureSource) -> RunContent:
    """Collect all that the page shows. Reads the run's files and raises nothing for those that cannot be read."""
    folder, record, notes = source.folder, source.record, list[str]()
    journal = source.content if source.content is not None else _journal(folder, notes)
    if journal.num_damaged:
        notes.append(f"Journal: {damaged_lines(journal.num_damaged)}")
    if record.is_altered:
        notes.append("run.json was changed by something other than DiTLab, or damaged; it is taken as it is.")
    experiment = source.experiment or _experiment(folder, notes)
    is_live = not source.ended and record.status == "running" and is_locked(folder)
    status = source.ended or record.status
    if status == "running" and not is_live:
        notes.append(
            "No process on this machine trains the run, and its record has no end: it was killed, or runs elsewhere."
        )
    metrics = series_of(journal)
    last_step = max((int(series.steps[-1]) for name, series in metrics.items() if name.startswith("train/")), default=0)
    events = _events(source, journal)
    parameters, tags = _values(journal, "params"), _values(journal, "tags")
    return RunContent(
        run_id=folder.run_id,
        name=hide(record.name),
        family=record.family,
        status=status,
        message=hide(record.message),
        step=max(record.step, last_step),
        total_steps=record.total_steps,
        is_live=is_live,
        components=_components(experiment),
        metrics=metrics,
        samples=samples_of(folder, journal, pictures, notes),
        figures=figures_of(folder, pictures, notes),
        attempts=attempts_of(journal, source.ended, is_live, int(time.time() * 1000)),
        events=events,
        spec=_text(folder.spec, MIB, notes),
        changes=spec_changes(source.home, record, experiment, parameters, notes),
        parameters=_parameter_counts(parameters),
        data=_data(journal),
        batch_size=experiment.batch.size if experiment else 0,
        checkpoints=kept_steps(folder),
        commands=_commands(folder, status, is_live),
        tags={name: hide(value) for name, value in tags.items() if not name.startswith("mlflow.")},
        environment=_text(folder.media / "environment.txt", MIB),
        notes=notes,
    )


def _journal(folder: RunFolder, notes: list[str]) -> JournalContent:
    try:
        return read_content(folder.journal)
    except FileNotFoundError:
        notes.append("The run has no journal yet, so there are no curves and no events.")
    except OSError as error:
        notes.append(f"journal.jsonl cannot be read ({first_line(error)}), so there are no curves and no events.")
    return JournalContent()


def _experiment(folder: RunFolder, notes: list[str]) -> Experiment | None:
    try:
        return load_recorded_experiment(folder.spec)
    except UserError as error:
        notes.append(f"The spec cannot be loaded, so it is compared with no other: {first_line(error)}.")
    return None


def _components(experiment: Experiment | None) -> list[str]:
    if experiment is None:
        return []
    weights: dict[str, float] = experiment.objective.weights.model_dump()
    return sorted((name for name, weight in weights.items() if weight), key=lambda name: -weights[name])


def _events(source: ReportSource, journal: JournalContent) -> list[ReportedEvent]:
    events = EventReader(source.folder).events_in(journal)
    found = [ReportedEvent(event.time, event.kind, hide(event.text)) for event in events]
    if source.ended:
        found.append(ReportedEvent(int(time.time() * 1000), "end", f"ended: {source.ended}"))
    return found


def _values(journal: JournalContent, kind: str) -> dict[str, str]:
    """Texts of all records of a kind: the first value of a parameter, the last one of a tag."""
    found: dict[str, str] = {}
    for record in journal.events:
        if record["kind"] == kind:
            found = {**record["values"], **found} if kind == "params" else {**found, **record["values"]}
    return found


def _parameter_counts(parameters: Mapping[str, str]) -> dict[str, int]:
    prefix = "parameters."
    return {name.removeprefix(prefix): int(value) for name, value in parameters.items()
            if name.startswith(prefix) and value.isdecimal() and len(value) < 16}  # fmt: skip


def _data(journal: JournalContent) -> DataFacts | None:
    for record in journal.events:
        if record["kind"] == "dataset" and record["context"] == "training":
            return DataFacts(hide(record["name"]), record["fingerprint"], hide(record["source"]), record["counts"])
    return None


def kept_steps(folder: RunFolder) -> list[int]:
    """Steps of the checkpoints in a run's own folder, oldest first."""
    with suppress(OSError, UserError):
        return committed(LocalFiles(folder.checkpoints, "checkpoint.storage").listing())
    return []


def _text(path: Path, limit: int, notes: list[str] | None = None) -> str:
    """A text file's content without secrets; empty, with a note where one is wanted, where it cannot be read."""
    try:
        return hide(read_plain(path, limit).decode(errors="replace"))
    except OSError as error:
        if notes is not None:
            notes.append(f"{path.name} cannot be read ({first_line(error)}).")
    return ""


def _commands(folder: RunFolder, status: str, is_live: bool) -> list[tuple[str, str]]:
    run = shlex.quote(folder.run_id)
    if is_live:
        return [("this page, live", f"ditlab watch {run}"), ("its events", f"ditlab runs log {run} --follow")]
    found = [("draw samples", f"ditlab sample {run} --num 16"), ("measure on held-out data", f"ditlab evaluate {run}"),
             ("figures of the family", f"ditlab figures {run}"),
             ("weights as safetensors", f"ditlab export {run} --out export-{run}")]  # fmt: skip
    if status in ("failed", "interrupted", "running"):
        resume = ("go on from the last checkpoint", f"ditlab train {shlex.quote(str(folder.spec))} --resume {run}")
        found.insert(0, resume)
    return found
