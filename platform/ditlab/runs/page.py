"""Page of a run from its files, written as one HTML file or served live. Needs no torch, and changes no file.

Each part that is missing or damaged costs itself alone.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ditlab.checkpoints.manifest import committed
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.reports.formatting import describe_value, shorten
from ditlab.reports.page import Paragraphs, Part, Table, render_html, write_text
from ditlab.runs.events import EventReader, RunEvent
from ditlab.runs.locks import is_locked
from ditlab.runs.page_pictures import EmbeddedPictures, PictureSource, figures_of, samples_of
from ditlab.runs.page_sections import RunAttempt, RunContent, run_page
from ditlab.secrets import hide
from ditlab.spec.cards import spec_fields
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.yaml_text import MAX_BYTES, parse_yaml
from ditlab.storage.local import LocalFiles
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.tracking.history import JournalFacts, series_of
from ditlab.tracking.journal import JournalContent, damaged_lines, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import RunRecord, read_record
from ditlab.tracking.tracker import RunTracker

REPORT = "report.html"
"""Name of the page in a run's folder."""
MOST_BYTES = 20_000_000
"""Bytes that a page stays below."""
_OTHER_FACTS = ("parameters.", "spec_hash")
_MOST_ROWS, _MOST_CHARACTERS = 500, 4000


def write_run_report(source: ReportSource, path: Path | None = None) -> Path:
    """Write the page of a run to `path` (None: `report.html` in its folder), and return the file's path.

    Raises OSError where the disk refuses.
    """
    html = render_html(run_page(collect(source, EmbeddedPictures())))
    if len(html.encode(errors="replace")) > MOST_BYTES:
        html = render_html(run_page(collect(source, EmbeddedPictures(most_steps=0))))
    return write_text(html, path or source.folder.path / REPORT)


def log_run_report(
    tracker: RunTracker, experiment: Experiment, home: Home, status: str, warn: Callable[[str], None]
) -> None:
    """Write the page of a run that ends with `status`, and log it as the run's artifact. Warns where it cannot."""
    if not experiment.tracking.report:
        return
    folder: RunFolder = tracker.folder
    try:
        path = write_run_report(report_source(home, folder, experiment=experiment, ended=status))
    except Exception as error:  # a page must never cost a run its end; `ditlab report` raises the same error
        warn(f"the run's page could not be written ({type(error).__name__}: {error}); `ditlab report` tries again.")
        return
    tracker.log_artifact(path)


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
    metrics, facts = series_of(journal), JournalFacts()
    for each in journal.events:
        facts.add(each)
    last_step = max((int(series.steps[-1]) for name, series in metrics.items() if name.startswith("train/")), default=0)
    return RunContent(
        record=record, status=status, step=max(record.step, last_step), is_live=is_live,
        components=_components(experiment), metrics=metrics,
        samples=samples_of(folder, journal, pictures, notes), figures=figures_of(folder, pictures, notes),
        attempts=attempts_of(journal, source.ended, is_live, int(time.time() * 1000)), events=_events(source, journal),
        spec=_text(folder.spec, MIB, notes),
        changes=spec_changes(source.home, record, experiment, facts.params, notes),
        parameters=_parameter_counts(facts.params), data=facts.dataset,
        batch_size=experiment.batch.size if experiment else 0, checkpoints=_kept_steps(folder),
        commands=_commands(folder, status, is_live),
        tags={name: hide(value) for name, value in facts.tags.items() if not name.startswith("mlflow.")},
        environment=_text(folder.media / "environment.txt", MIB), notes=notes,
    )  # fmt: skip


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


def _events(source: ReportSource, journal: JournalContent) -> list[RunEvent]:
    found = [replace(event, text=hide(event.text)) for event in EventReader(source.folder).events_in(journal)]
    if source.ended:
        found.append(RunEvent(int(time.time() * 1000), "end", f"ended: {source.ended}"))
    return found


def _parameter_counts(parameters: Mapping[str, str]) -> dict[str, int]:
    prefix = "parameters."
    return {name.removeprefix(prefix): int(value) for name, value in parameters.items()
            if name.startswith(prefix) and value.isdecimal() and len(value) < 16}  # fmt: skip


def _kept_steps(folder: RunFolder) -> list[int]:
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


def attempts_of(journal: JournalContent, ended: str, is_live: bool, now: int) -> list[RunAttempt]:
    """Attempts by time; `ended` is the status of a run that ends in this moment, `now` in milliseconds since 1970."""
    records = sorted(journal.events, key=lambda record: int(record["time"]))
    starts = [int(record["time"]) for record in records if record["kind"] == "start"]
    found = []
    for begin, following in zip(starts, [*starts[1:], None], strict=False):
        is_last = following is None
        until = following if following is not None else max(now, begin)
        if is_last and (ended or is_live):
            found.append(RunAttempt(begin, until, ended or "running"))
            continue
        own = [record for record in records if begin <= record["time"] and (is_last or record["time"] < until)]
        ends = [record for record in own if record["kind"] == "end"]
        failures = [
            record for record in own if record["kind"] == "tags" and "ditlab.failure_message" in record["values"]
        ]
        last = _last_sign(journal, own, begin, until)
        if ends:
            found.append(RunAttempt(begin, int(ends[0]["time"]), ends[0]["status"]))
        else:
            found.append(RunAttempt(begin, last, "failed" if failures else "killed"))
    return found


def _last_sign(journal: JournalContent, records: list[dict[str, object]], begin: int, until: int) -> int:
    """Time of the last record of an attempt."""
    times = [int(str(record["time"])) for record in records]
    logged = np.array(journal.times)
    inside = logged[(logged >= begin) & (logged < until)]
    return max([begin, *times, *inside[-1:].tolist()])


def spec_changes(
    home: Home, record: RunRecord, experiment: Experiment | None, logged: Mapping[str, str], notes: list[str]
) -> list[Part]:
    """Differences of a run's spec, the nearest parent first. `logged` are the parameters of its first start."""
    if experiment is None:
        return []
    now = flatten(experiment.to_dict())
    found = []
    first = {path: value for path, value in logged.items() if not path.startswith(_OTHER_FACTS)}
    if changed := [row for row in _differences(now, first) if row[2] is not None]:
        found.append(_changes("its first start", ("changed by a resume", "now", "at the first start"), changed))
    if start := experiment.start:
        parent = flatten(_recorded(home, start.run, "spec.yaml", f"The spec of run {start.run}, its parent,", notes))
        rows = [row for row in _differences(now, parent) if not row[0].startswith("start")]
        if parent:
            point = f"its parent, run {start.run}, from whose step {start.step:,} it goes on"
            found.append(_changes(point, ("field", "this run", "its parent"), rows))
    what = f"The base of sweep {record.parent}"
    base = _recorded(home, record.parent, "sweep.yaml", what, notes).get("base") if record.parent else None
    if isinstance(base, dict) and base:
        rows = [row for row in _differences(now, flatten(base)) if row[2] is not None]
        found.append(_changes("the base of its sweep", ("field", "this trial", "base"), rows))
    rows = [(field.path, *field.texts(describe_value, "none: it must be set"))
            for field in spec_fields(experiment) if field.differs]  # fmt: skip
    found.append(_changes("the defaults", ("field", "this run", "default"), rows))
    return found


def _changes(against: str, columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Part:
    """Table of path, the run's value and the other value, without the run's name."""
    shown = [[each and shorten(each, _MOST_CHARACTERS) for each in row] for row in rows if row[0] != "name"]
    if not shown:
        return Paragraphs(f"No difference against {against}.")
    return Table(columns, shown[:_MOST_ROWS], f"Differences against {against}.")


def _differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    return [
        (path, own.get(path), other.get(path))
        for path in dict.fromkeys([*own, *other])
        if own.get(path) != other.get(path)
    ]


def _recorded(home: Home, run_id: str, name: str, what: str, notes: list[str]) -> dict[str, Any]:
    """A recorded spec of another run, not validated; empty, with a note, where it cannot be read."""
    try:
        path = home.run(run_id).path / name
        mapping = parse_yaml(read_plain(path, MAX_BYTES).decode(), str(path))
        return mapping if isinstance(mapping, dict) else {}
    except (OSError, ValueError, UserError) as error:
        notes.append(f"{what} cannot be read ({first_line(error)}).")
    return {}
