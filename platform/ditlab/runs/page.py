"""Page of a run from its files, written as one HTML file or served live. Needs no torch, and changes no file.

Each part that is missing or damaged costs itself alone.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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
_MOST_CHARACTERS = 4000


def write_run_report(home: Home, folder: RunFolder, path: Path | None = None, **known: Any) -> Path:
    """Write the page of a run to `path` (None: `report.html` in its folder), and return the file's path.

    `known`: what `collect` takes. Raises OSError where the disk refuses, UserError where the run's record cannot be
    read.
    """
    html = render_html(run_page(collect(home, folder, EmbeddedPictures(), **known)))
    if len(html.encode(errors="replace")) > MOST_BYTES:
        html = render_html(run_page(collect(home, folder, EmbeddedPictures(most_steps=0), **known)))
    return write_text(html, path or folder.path / REPORT)


def log_run_report(
    tracker: RunTracker, experiment: Experiment, home: Home, status: str, warn: Callable[[str], None]
) -> None:
    """Write the page of a run that ends with `status`, and log it as the run's artifact. Warns where it cannot."""
    if not experiment.tracking.report:
        return
    try:
        path = write_run_report(home, tracker.folder, experiment=experiment, ended=status)
    except Exception as error:  # a page must never cost a run its end; `ditlab report` raises the same error
        warn(f"the run's page could not be written ({type(error).__name__}: {error}); `ditlab report` tries again.")
        return
    tracker.log_artifact(path)


def collect(
    home: Home, folder: RunFolder, pictures: PictureSource, experiment: Experiment | None = None,
    content: JournalContent | None = None, ended: str = "",
) -> RunContent:  # fmt: skip
    """Collect all that the page shows from the run's files; those that cannot be read become notes.

    `experiment` and `content` (of the journal) are read where they are not known; `ended` is the status of a run that
    ends in this moment, before its record says so. Raises UserError where the run's record cannot be read.
    """
    record, notes, journal, kept = read_record(folder), list[str](), content or JournalContent(), list[int]()
    try:
        journal = content or read_content(folder.journal)
    except FileNotFoundError:
        notes.append("The run has no journal yet, so there are no curves and no events.")
    except OSError as error:
        notes.append(f"journal.jsonl cannot be read ({first_line(error)}), so there are no curves and no events.")
    try:
        experiment = experiment or load_recorded_experiment(folder.spec)
    except UserError as error:
        notes.append(f"The spec cannot be loaded, so it is compared with no other: {first_line(error)}.")
    with suppress(OSError, UserError):
        kept = committed(LocalFiles(folder.checkpoints, "checkpoint.storage").listing())
    if journal.num_damaged:
        notes.append(f"Journal: {damaged_lines(journal.num_damaged)}")
    if record.is_altered:
        notes.append("run.json was changed by something other than DiTLab, or damaged; it is taken as it is.")
    is_live = not ended and record.status == "running" and is_locked(folder)
    status = ended or record.status
    if status == "running" and not is_live:
        notes.append(
            "No process on this machine trains the run, and its record has no end: it was killed, or runs elsewhere."
        )
    metrics, facts, now = series_of(journal), JournalFacts(), int(time.time() * 1000)
    for each in journal.events:
        facts.add(each)
    last_step = max((int(series.steps[-1]) for name, series in metrics.items() if name.startswith("train/")), default=0)
    weights: dict[str, float] = experiment.objective.weights.model_dump() if experiment else {}
    events = [replace(event, text=hide(event.text)) for event in EventReader(folder).events_in(journal)]
    if ended:
        events.append(RunEvent(now, "end", f"ended: {ended}"))
    counts = {name.removeprefix("parameters."): int(value) for name, value in facts.params.items()
              if name.startswith("parameters.") and value.isdecimal()}  # fmt: skip
    return RunContent(
        record=record, status=status, step=max(record.step, last_step), is_live=is_live,
        components=sorted(filter(weights.get, weights), key=lambda name: -weights[name]), metrics=metrics,
        samples=samples_of(folder, journal, pictures, notes), figures=figures_of(folder, pictures, notes),
        attempts=attempts_of(journal, ended, is_live, now), events=events, spec=_text(folder.spec, MIB, notes),
        changes=spec_changes(home, record, experiment, facts.params, notes), parameters=counts,
        data=facts.dataset, batch_size=experiment.batch.size if experiment else 0, checkpoints=kept,
        commands=_commands(folder, status, is_live),
        tags={name: hide(value) for name, value in facts.tags.items() if not name.startswith("mlflow.")},
        environment=_text(folder.media / "environment.txt", MIB), notes=notes,
    )  # fmt: skip


def _text(path: Path, limit: int, notes: list[str] | None = None) -> str:
    """A text file's content without secrets; empty, with a note where one is wanted, where it cannot be read."""
    try:
        return hide(read_plain(path, limit).decode(errors="replace"))
    except OSError as error:
        if notes is not None:
            notes.append(f"{path.name} cannot be read ({first_line(error)}).")
    return ""


def _commands(folder: RunFolder, status: str, is_live: bool) -> dict[str, str]:
    run = shlex.quote(folder.run_id)
    if is_live:
        return {"this page, live": f"ditlab watch {run}", "its events": f"ditlab runs log {run} --follow"}
    resume = f"ditlab train {shlex.quote(str(folder.spec))} --resume {run}"
    return {
        **({"go on from the last checkpoint": resume} if status in ("failed", "interrupted", "running") else {}),
        "draw samples": f"ditlab sample {run} --num 16",
        "measure on held-out data": f"ditlab evaluate {run}",
        "figures of the family": f"ditlab figures {run}",
        "weights as safetensors": f"ditlab export {run} --out export-{run}",
    }


def attempts_of(journal: JournalContent, ended: str, is_live: bool, now: int) -> list[RunAttempt]:
    """Attempts by time; `ended` is the status of a run that ends in this moment, `now` in milliseconds since 1970."""
    records = sorted(journal.events, key=lambda record: int(record["time"]))
    starts = [int(record["time"]) for record in records if record["kind"] == "start"]
    logged, found = np.array(journal.times), []
    for begin, following in zip(starts, [*starts[1:], None], strict=False):
        if following is None and (ended or is_live):
            found.append(RunAttempt(begin, max(now, begin), ended or "running"))
            continue
        until = following or max(now, begin) + 1
        own = [record for record in records if begin <= record["time"] < until]
        if ends := [record for record in own if record["kind"] == "end"]:
            found.append(RunAttempt(begin, int(ends[0]["time"]), ends[0]["status"]))
            continue
        last = max([begin, *(int(record["time"]) for record in own), *logged[(logged >= begin) & (logged < until)]])
        tags = [record["values"] for record in own if record["kind"] == "tags"]
        has_failed = any("ditlab.failure_message" in values for values in tags)
        found.append(RunAttempt(begin, int(last), "failed" if has_failed else "killed"))
    return found


def spec_changes(
    home: Home, record: RunRecord, experiment: Experiment | None, logged: Mapping[str, str], notes: list[str]
) -> list[Part]:
    """Differences of a run's spec, the nearest parent first. `logged` are the parameters of its first start."""
    if experiment is None:
        return []
    now, found = flatten(experiment.to_dict()), list[Part]()
    first = {path: value for path, value in logged.items() if not path.startswith(_OTHER_FACTS)}
    if changed := _differences(now, first, only_shared=True):
        found.append(_changes("its first start", ("changed by a resume", "now", "at the first start"), changed))
    if start := experiment.start:
        parent = flatten(_recorded(home, start.run, "spec.yaml", f"The spec of run {start.run}, its parent,", notes))
        rows = [row for row in _differences(now, parent) if not row[0].startswith("start")]
        if parent:
            point = f"its parent, run {start.run}, from whose step {start.step:,} it goes on"
            found.append(_changes(point, ("field", "this run", "its parent"), rows))
    if record.parent:
        base = _recorded(home, record.parent, "sweep.yaml", f"The base of sweep {record.parent}", notes).get("base")
        if isinstance(base, dict) and base:
            rows = _differences(now, flatten(base), only_shared=True)
            found.append(_changes("the base of its sweep", ("field", "this trial", "base"), rows))
    defaults = [(field.path, *field.texts(describe_value, "none: it must be set"))
                for field in spec_fields(experiment) if field.differs]  # fmt: skip
    return [*found, _changes("the defaults", ("field", "this run", "default"), defaults)]


def _changes(against: str, columns: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Part:
    """Table of path, the run's value and the other value, without the run's name."""
    shown = [[each and shorten(each, _MOST_CHARACTERS) for each in row] for row in rows if row[0] != "name"]
    if not shown:
        return Paragraphs(f"No difference against {against}.")
    return Table(columns, shown, f"Differences against {against}.")


def _differences(
    own: Mapping[str, str], other: Mapping[str, str], only_shared: bool = False
) -> list[tuple[str, str | None, str | None]]:
    paths = [path for path in dict.fromkeys([*own, *other]) if path in other or not only_shared]
    return [(path, own.get(path), other.get(path)) for path in paths if own.get(path) != other.get(path)]


def _recorded(home: Home, run_id: str, name: str, what: str, notes: list[str]) -> dict[str, Any]:
    """A recorded spec of another run, not validated; empty, with a note, where it cannot be read."""
    try:
        path = home.run(run_id).path / name
        mapping = parse_yaml(read_plain(path, MAX_BYTES).decode(), str(path))
        return mapping if isinstance(mapping, dict) else {}
    except (OSError, ValueError, UserError) as error:
        notes.append(f"{what} cannot be read ({first_line(error)}).")
    return {}
