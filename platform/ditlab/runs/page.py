"""Page of a run from its files, written as one HTML file or served live. Needs no torch, and
changes no file.

Each part that is missing or damaged costs itself alone.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic_core import PydanticUndefined

from ditlab.checkpoints.manifest import committed
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.receipts.records import protocols_text
from ditlab.reports import page as html
from ditlab.reports.charts import Chart, CurvePoints, draw_chart
from ditlab.reports.formatting import Cell, describe_value, format_duration, format_number, shorten
from ditlab.reports.page import render_html, write_text
from ditlab.reports.time_summary import FIGURES_TIME, time_summary
from ditlab.runs.events import EventReader, RunEvent
from ditlab.runs.locks import is_locked
from ditlab.runs.page_pictures import (
    EmbeddedPictures,
    PictureSource,
    figures_of,
    read_shown,
    samples_of,
)
from ditlab.secrets import hide
from ditlab.spec.experiment import Experiment
from ditlab.spec.files import load_recorded_experiment
from ditlab.spec.overrides import spec_fields
from ditlab.spec.yaml_text import read_recorded
from ditlab.storage.local import LocalFiles
from ditlab.tracking.history import SPEED, STRAGGLER_TAG, JournalFacts, RunResults, series_of
from ditlab.tracking.journal import (
    RECENT_TEXT,
    TRAIN_LOSS,
    JournalContent,
    damaged_lines,
    read_content,
)
from ditlab.tracking.names import differing, flatten
from ditlab.tracking.notes import baselines, untrained
from ditlab.tracking.records import RunRecord, read_record
from ditlab.tracking.tracker import RunTracker
from ditlab_models.intervals import doubtful_intervals, interval_ends

if TYPE_CHECKING:
    from ditlab.runs.launch import Launch  # imports torch, which a page needs not

REPORT = "report.html"
"""Name of the page in a run's folder."""
MOST_BYTES = 20_000_000
"""Bytes that a page stays below."""
TRAIN = "train/"
HELD_OUT = "eval/"
"""Prefixes of the metrics of steps and of evaluations."""
_OPTIMISER = [f"{TRAIN}{name}" for name in ("grad_norm", "lr")]
_DATA_WAIT = "train/data_wait"
MOST_CHARTS = 40
"""Charts of one section; the others are counted in a sentence."""
_THINNED = (
    "Lines of many points: the median of each stretch of steps; the area around it: its lowest "
    "to its highest value."
)
_MOST_EVENTS = 240
_MOST_CHARACTERS = 1000
_LISTED = frozenset({"start", "data", "failure", "recovery", "state", "end"})
"""Kinds of events that are listed before all others where there are too many to list all."""
_QUARTER = re.compile(r"_t[0-3]$")
"""Ending of held-out metrics of a quarter of the times."""
_LONGEST_VALUE = 4000  # characters of a field of the spec


def write_run_report(home: Home, folder: RunFolder, path: Path | None = None, **known: Any) -> Path:
    """Write the page of a run (`known`: see `RunContent`) to `path`, or `report.html` in its
    folder; return the file.

    Raises OSError where the disk refuses, UserError where the run's record cannot be read.
    """
    for pictures in (EmbeddedPictures(), EmbeddedPictures(most_steps=0)):
        text = render_html(run_page(RunContent(home, folder, pictures, **known)))
        if len(text.encode(errors="replace")) <= MOST_BYTES:
            break
    return write_text(text, path or folder.path / REPORT)


def log_run_report(
    tracker: RunTracker, launch: Launch, status: str, warn: Callable[[str], None]
) -> None:
    """Write the page of a run that ends with `status`, and log it as the run's artifact. Warns
    where it cannot.
    """
    experiment = launch.experiment
    if not experiment.tracking.report:
        return
    try:
        path = write_run_report(launch.home, tracker.folder, experiment=experiment, ended=status)
    # a page must never cost a run its end; `ditlab report` raises the same error
    except Exception as error:
        warn(
            f"the run's page could not be written ({type(error).__name__}: {error}); `ditlab "
            "report` tries again."
        )
        return
    tracker.log_artifact(path)


class RunAttempt(NamedTuple):
    """One start of a run, up to its end or to the next start, in milliseconds since 1970."""

    begin: int
    end: int
    status: str
    """`finished`, `failed`, `interrupted`, `stopped`, `running`, or `killed` where it ended without
    a record.
    """


class RunContent:
    """All that a run's page shows, read from the run's files. What is missing is empty, and `notes`
    says why.
    """

    def __init__(
        self,
        home: Home,
        folder: RunFolder,
        pictures: PictureSource,
        experiment: Experiment | None = None,
        content: JournalContent | None = None,
        ended: str = "",
    ) -> None:
        """Read the files; `experiment` and `content` (of the journal) where they are not known.

        `ended` is the status of a run that ends in this moment, before its record says so. Raises
        UserError where the run's record cannot be read.
        """
        self.folder = folder
        self.record = read_record(folder)
        self.notes = notes = list[str]()
        journal = content or _journal(folder, notes)
        experiment = experiment or _experiment(folder, notes)
        self.checkpoints: list[int] = []
        with suppress(OSError, UserError):
            self.checkpoints = committed(
                LocalFiles(folder.checkpoints, "checkpoint.storage").listing()
            )
        if journal.num_damaged:
            notes.append(f"Journal: {damaged_lines(journal.num_damaged)}")
        self.is_live = not ended and self.record.status == "running" and is_locked(folder)
        self.status = ended or self.record.status
        if self.status == "running" and not self.is_live:
            notes.append(
                "No process on this machine trains the run, and its record has no end: it was "
                "killed, or runs elsewhere."
            )
        self._read_metrics(journal)
        now = int(time.time() * 1000)
        if self.is_live:
            self.facts.count_time(now)
        self._read_objective(experiment)
        self.samples = samples_of(folder, journal, pictures, notes)
        self.figures = figures_of(folder, pictures, notes)
        self.attempts = attempts_of(journal, ended, self.is_live, now)
        self.seconds = sum(max(0, attempt.end - attempt.begin) for attempt in self.attempts) / 1000
        self.events = [
            replace(event, text=hide(event.text))
            for event in EventReader(folder).events_in(journal)
        ]
        if ended:
            self.events.append(RunEvent(now, "end", f"ended: {ended}"))
        self.spec = read_shown(folder.spec, notes)
        self.changes = spec_changes(home, self.record, experiment, notes)

    def _read_metrics(self, journal: JournalContent) -> None:
        """Read what the journal has of metrics, parameters and tags."""
        self.metrics = series_of(journal)
        self.facts = JournalFacts.of(journal)
        self.results = RunResults()
        self.results.load(journal)
        trained = (
            int(series.steps[-1]) for name, series in self.metrics.items() if name.startswith(TRAIN)
        )
        self.step = max([self.record.step, *trained])
        self.parameters = {
            name.removeprefix("parameters."): int(value)
            for name, value in self.facts.params.items()
            if name.startswith("parameters.") and value.isdecimal()
        }
        self.tags = {
            name: hide(value)
            for name, value in self.facts.tags.items()
            if not name.startswith("mlflow.")
        }
        speeds = self._values(SPEED)
        self.speeds = speeds[np.isfinite(speeds) & (speeds > 0)]
        self.num_bad_steps = int((~np.isfinite(self._values(TRAIN_LOSS))).sum())

    def _values(self, metric: str) -> np.ndarray:
        if metric in self.metrics:
            return self.metrics[metric].values
        return np.array([])

    def _read_objective(self, experiment: Experiment | None) -> None:
        """Read the components of the loss, the heaviest first, and the main metric."""
        weights: dict[str, float] = {}
        self.batch_size = 0
        self.quarters = ""
        if experiment:
            weights = experiment.objective.weights.model_dump()
            self.batch_size = experiment.batch.size
            self.quarters = experiment.objective.quarters
        self.components = sorted(filter(weights.get, weights), key=lambda name: -weights[name])
        held_out = [*(f"{HELD_OUT}{name}" for name in self.components), *self.named(HELD_OUT)]
        self.main_metric = next((name for name in held_out if name in self.metrics), None)

    def named(self, *prefixes: str) -> list[str]:
        """Names of the metrics that begin with one of the prefixes."""
        return sorted(name for name in self.metrics if name.startswith(prefixes))

    def names_under(self, prefix: str) -> list[str]:
        """Names of the metrics that begin with a prefix, without it."""
        return [name.removeprefix(prefix) for name in self.metrics if name.startswith(prefix)]

    def last(self, metric: str) -> str:
        """Last value of a metric, as text."""
        return format_number(self.metrics[metric].values[-1])

    def compared(self, metric: str) -> str:
        """Name what a result compares with, where that was measured: `; untrained 1.721; bigram
        2.1`.
        """
        found = []
        first = untrained(self.results[metric])
        if first:
            found.append(f"untrained {first}")
        found += [
            f"{word} {format_number(value)}"
            for word, value in baselines(metric, self.results).items()
        ]
        return "".join(f"; {each}" for each in found)


def _journal(folder: RunFolder, notes: list[str]) -> JournalContent:
    try:
        return read_content(folder.journal)
    except FileNotFoundError:
        notes.append("The run has no journal yet, so there are no curves and no events.")
    except OSError as error:
        notes.append(
            f"journal.jsonl cannot be read ({first_line(error)}), so there are no curves and "
            "no events."
        )
    return JournalContent()


def _experiment(folder: RunFolder, notes: list[str]) -> Experiment | None:
    try:
        return load_recorded_experiment(folder.spec)
    except UserError as error:
        notes.append(
            f"The spec cannot be loaded, so it is compared with no other: {first_line(error)}."
        )
    return None


def attempts_of(journal: JournalContent, ended: str, is_live: bool, now: int) -> list[RunAttempt]:
    """Attempts by time; `ended` is the status of a run that ends in this moment, `now` in
    milliseconds since 1970.
    """
    records = sorted(journal.events, key=lambda record: record["time"])
    starts = [record["time"] for record in records if record["kind"] == "start"]
    logged = np.array(journal.times)
    found = []
    # The last attempt has no end in the journal: a trainer's clock may be ahead of this one.
    for begin, until in zip(starts, [*starts[1:], math.inf], strict=False):
        if until == math.inf and (ended or is_live):
            found.append(RunAttempt(begin, max(now, begin), ended or "running"))
        else:
            own = [record for record in records if begin <= record["time"] < until]
            found.append(_past_attempt(begin, own, logged[(logged >= begin) & (logged < until)]))
    return found


def _past_attempt(begin: int, own: Sequence[Mapping[str, Any]], logged: np.ndarray) -> RunAttempt:
    """An attempt that has ended, by its own events and the times of its metrics."""
    for record in own:
        if record["kind"] == "end":
            return RunAttempt(begin, record["time"], record["status"])
    last = max([begin, *(record["time"] for record in own), *logged])
    tags = [record["values"] for record in own if record["kind"] == "tags"]
    has_failed = any("ditlab.failure_message" in values for values in tags)
    return RunAttempt(begin, int(last), "failed" if has_failed else "killed")


def spec_changes(
    home: Home, record: RunRecord, experiment: Experiment | None, notes: list[str]
) -> list[html.Part]:
    """Differences of a run's spec, the nearest parent first."""
    if experiment is None:
        return []
    now = flatten(experiment.to_dict())
    found = []

    def recorded(run_id: str, name: str, what: str) -> dict[str, Any]:
        try:
            return read_recorded(home.run(run_id).path / name)
        except (OSError, ValueError, UserError) as error:
            notes.append(f"{what} cannot be read ({first_line(error)}).")
        return {}

    start = experiment.start
    if start:
        parent = flatten(
            recorded(start.run, "spec.yaml", f"The spec of run {start.run}, its parent,")
        )
        if parent:
            changed = differing(now, parent).items()
            rows = [(path, *values) for path, values in changed if not path.startswith("start")]
            point = f"its parent, run {start.run}, from whose step {start.step:,} it goes on"
            found.append(_changes(point, ("field", "this run", "its parent"), rows))
    if record.parent:
        base = recorded(record.parent, "sweep.yaml", f"The base of sweep {record.parent}").get(
            "base"
        )
        if isinstance(base, dict) and base:
            plain = flatten(base)
            rows = [
                (path, *values) for path, values in differing(now, plain).items() if path in plain
            ]
            found.append(_changes("the base of its sweep", ("field", "this trial", "base"), rows))
    found.append(_changes("the defaults", ("field", "this run", "default"), _defaults(experiment)))
    return found


_Change = tuple[str, str, str]
"""Path, value, and the value it is compared with."""


def _defaults(experiment: Experiment) -> list[_Change]:
    """Fields that differ from their defaults."""
    return [
        (path, describe_value(value), _default(default))
        for path, value, default in spec_fields(experiment)
        if value != default
    ]


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "none: it must be set"
    return describe_value(value)


def _changes(against: str, columns: Sequence[str], changes: Sequence[_Change]) -> html.Part:
    """A table of differences, without the run's name."""
    rows = [[shorten(each, _LONGEST_VALUE) for each in row] for row in changes if row[0] != "name"]
    if not rows:
        return html.Paragraphs(f"No difference against {against}.")
    return html.Table(columns, rows, f"Differences against {against}.")


def run_page(run: RunContent) -> html.Page:
    """The page of a run: what people ask first stands first; sections without content are
    dropped.
    """
    whole_spec: list[tuple[str, list[html.Part]]] = []
    if run.spec:
        whole_spec.append(("The whole spec", [html.Code(run.spec, "yaml")]))
    software: list[tuple[str, list[html.Part]]] = []
    if run.tags:
        software.append(("Tags", [html.Table(["tag", "value"], list(run.tags.items()))]))
    environment = read_shown(run.folder.media / "environment.txt")
    if environment:
        software.append(("Packages and their versions", [html.Code(environment)]))
    figures: list[html.Part] = []
    if run.figures:
        figures.append(html.Pictures(run.figures))
    sections = [
        _result(run),
        html.Section("Samples", run.samples[1:], "samples"),
        _curves(run),
        _quality(run),
        _evaluated(run),
        html.Section("Spec", run.changes, "spec", whole_spec),
        _speed(run),
        _timeline(run),
        html.Section("Figures", figures, "figures"),
        _parameters(run),
        _data(run),
        html.Section("Software and machine", [], "software", software),
    ]
    progress = None
    if run.is_live and run.record.total_steps:
        progress = min(run.step / run.record.total_steps, 1.0)
    kept = [section for section in sections if section.parts or section.folded]
    title = f"{hide(run.record.name)} ({run.record.run_id})"
    status = run.status
    if run.is_live:
        status = "running"
    return html.Page(title, _summary(run), kept, status, progress)


def _summary(run: RunContent) -> str:
    model = f"A {run.record.family} model"
    if "total" in run.parameters:
        model += f", {run.parameters['total']:,} parameters"
    if run.facts.dataset:
        model += f" on {hide(run.facts.dataset['name'])}"
    ends = {
        "interrupted": "was interrupted",
        "stopped": "was stopped",
        "running": "has no end in its record",
    }
    state = "is training" if run.is_live else ends.get(run.status, run.status)
    time = f" in {format_duration(run.seconds)}" if run.seconds else ""
    sentences = [f"{model}: {state} at step {run.step:,} of {run.record.total_steps:,}{time}."]
    if run.record.message and not run.is_live:
        sentences.append(f"Reason: {hide(run.record.message)}")
    if run.status in ("failed", "interrupted", "running") and not run.is_live:
        sentences.append(f"To go on: {run.folder.resume_command}")
    return " ".join(sentences)


def _result(run: RunContent) -> html.Section:
    """Result beside its baselines, cost, newest samples and the main curve: what one screen can
    answer.
    """
    main = run.main_metric
    no_samples = html.Paragraphs("The run has drawn no samples yet, or draws none.")
    shown = (main or TRAIN_LOSS).removeprefix(HELD_OUT).removeprefix(TRAIN)
    curves = _charts(run, "main", {shown: _pair(shown)}) or [
        html.Notice("The journal holds no metrics of this run yet.")
    ]
    row = html.Row([*(run.samples[:1] or [no_samples]), *curves])
    protocol: list[html.Part] = []
    if main:
        text = protocols_text(run.facts.tags, "eval")
        protocol += [html.Paragraphs(text)] * bool(text)
    return html.Section(
        "Result",
        [html.Facts([*_facts(run)]), *protocol, row, *map(html.Notice, run.notes)],
        "result",
    )


def _facts(run: RunContent) -> Iterator[html.Fact]:
    """Values of the result beside their baselines, then speed and cost."""
    main = run.main_metric
    if main:
        yield from _main_facts(run, main)
    others = (name for name in run.results if name != main and baselines(name, run.results))
    # what the family's evaluator or the quality of samples measured
    other = next(others, None)
    if other:
        yield html.Fact(other, run.last(other), run.compared(other).removeprefix("; "))
    if TRAIN_LOSS in run.metrics:
        yield html.Fact(
            "training loss", format_number(run.metrics[TRAIN_LOSS].recent_median()), RECENT_TEXT
        )
    if len(run.speeds):
        yield html.Fact("samples/s", format_number(np.median(run.speeds)), "median of the run")
    yield from _cost_facts(run)
    if run.checkpoints:
        yield html.Fact(
            "checkpoint", f"step {run.checkpoints[-1]:,}", f"{len(run.checkpoints)} kept here"
        )
    if run.num_bad_steps:
        yield html.Fact("steps with NaN or infinity", f"{run.num_bad_steps:,}")


def _cost_facts(run: RunContent) -> Iterator[html.Fact]:
    """Time of all attempts, and hours of devices with their price."""
    if run.seconds:
        attempts = ""
        if len(run.attempts) > 1:
            attempts = f"in {len(run.attempts)} attempts"
        yield html.Fact("time", format_duration(run.seconds), attempts)
    price = f"price {format_number(run.facts.price)}" if run.facts.price else ""
    for device, hours in run.facts.device_hours.items():
        yield html.Fact(f"{device} hours", format_number(hours), price)


def _main_facts(run: RunContent, main: str) -> Iterator[html.Fact]:
    """Last value of the main metric, and the lowest where that is another."""
    series = run.metrics[main]
    name = main.removeprefix(HELD_OUT)
    yield html.Fact(
        f"held-out {name}", run.last(main), f"step {int(series.steps[-1]):,}{run.compared(main)}"
    )
    finite = np.where(np.isfinite(series.values), series.values, np.nan)
    if np.isnan(finite).all():
        return
    lowest = int(np.nanargmin(finite))
    if lowest != len(finite) - 1:
        yield html.Fact(
            f"lowest {name}", format_number(finite[lowest]), f"step {int(series.steps[lowest]):,}"
        )


def _pair(name: str) -> list[tuple[str, str, str]]:
    return [(f"{TRAIN}{name}", "train", "train"), (f"{HELD_OUT}{name}", "held out", "held-out")]


def _loss_curves(
    run: RunContent, of_parts: Sequence[str], quarters: Sequence[str]
) -> dict[str, list[tuple[str, str, str]]]:
    """Curves by title of the metrics that no other chart shows, and of quarters of time."""
    trained = run.names_under(TRAIN)
    held_out = run.names_under(HELD_OUT)
    elsewhere = (*_OPTIMISER, SPEED, _DATA_WAIT, run.main_metric or TRAIN_LOSS)
    drawn = {name.removeprefix(HELD_OUT).removeprefix(TRAIN) for name in elsewhere}
    shown = {*trained, *held_out} - {*of_parts, *quarters, *drawn}
    names = dict.fromkeys(["loss", *run.components, *trained, *held_out])
    curves = {name: _pair(name) for name in names if name in shown}
    for name in quarters:
        component, _, place = name.rpartition("_")
        curves.setdefault(f"{component} by quarter of time", []).append(
            (f"{HELD_OUT}{name}", place, place)
        )
    return curves


def _curves(run: RunContent) -> html.Section:
    """Charts of the other loss components, training and held-out values in one, and of quarters of
    time; parts of a mixture, optimiser, machine folded."""
    held_out = run.names_under(HELD_OUT)
    # `NAME/velocity`, of one part of a mixture
    of_parts = [name for name in held_out if "/" in name]
    quarters = sorted(name for name in held_out if _QUARTER.search(name))
    parts = _charts(run, "loss", _loss_curves(run, of_parts, quarters))
    if quarters and run.quarters:
        parts.append(html.Paragraphs(run.quarters))
    if not held_out and run.named(TRAIN):
        text = (
            "The run was not evaluated on held-out samples: the curves are of the training alone."
        )
        parts.append(html.Paragraphs(text))
    by_part = _plain_charts(run, "parts", [f"{HELD_OUT}{name}" for name in of_parts])
    folded = [
        ("Held-out samples of each part", by_part),
        ("Optimiser", _plain_charts(run, "optimiser", _OPTIMISER)),
        ("Load of the machine", _plain_charts(run, "machine", run.named("system/"))),
    ]
    return html.Section("Curves", parts, "curves", [each for each in folded if each[1]])


def _quality(run: RunContent) -> html.Section:
    """Quality of the samples."""
    about = (
        "Distances to this data set's real images: they compare runs on the same data, never "
        "with published FID; but for figures of evaluation.features, which are of published "
        "networks."
    )
    return html.Section(
        "Quality of the samples", _measured(run, run.named("quality/"), "quality", about), "quality"
    )


def _evaluated(run: RunContent) -> html.Section:
    """Held-out metrics and the family's own evaluation, as `ditlab evaluate` measured them."""
    names = run.named("held_out/", "assessed/")
    about = (
        "Measured on all held-out samples by `ditlab evaluate`. "
        f"{run.facts.held_out_text(run.metrics)}"
    ).rstrip()
    parts = _measured(run, names, "evaluation", about)
    return html.Section("Evaluation after training", parts, "evaluation")


def _measured(run: RunContent, names: Sequence[str], chart: str, about: str) -> list[html.Part]:
    """A table of metrics' last and lowest values, and charts of those with several."""
    rows: list[list[Cell]] = []
    intervals = interval_ends({name: float(run.metrics[name].values[-1]) for name in names})
    names = [
        name
        for name in names
        if re.sub("_(low|high|df)$", "", name) not in intervals.keys() - {name}
    ]
    for name in names:
        steps = run.metrics[name].steps
        values = run.metrics[name].values
        lowest = math.nan
        if np.isfinite(values).any():
            lowest = float(np.nanmin(values))
        between = ""
        if name in intervals:
            interval = intervals[name]
            between = f"{format_number(interval.low)} to {format_number(interval.high)}"
        rows.append(
            [
                name,
                float(values[-1]),
                *([between] if intervals else []),
                int(steps[-1]),
                lowest,
                len(values),
            ]
        )
    heads = [
        "metric",
        "last value",
        *["95 % interval"] * bool(intervals),
        "at step",
        "lowest",
        "measurements",
    ]
    groups = dict.fromkeys(name.partition("/")[0] for name in names)
    about = f"{about} {protocols_text(run.facts.tags, *groups)}".rstrip()
    about = f"{about} {doubtful_intervals(intervals)}".rstrip()
    table = [html.Table(heads, rows, about)] if rows else []
    several = [name for name in names if len(run.metrics[name].values) > 1]
    return [*table, *_plain_charts(run, chart, several)]


def _speed(run: RunContent) -> html.Section:
    """Samples a second and the wait for data over the steps, and where the time went."""
    parts: list[html.Part] = []
    if len(run.speeds):
        low, middle, high = np.quantile(run.speeds, (0.05, 0.5, 0.95)).tolist()
        spread = f"9 of 10 steps: {format_number(low)} to {format_number(high)}"
        facts = [html.Fact("median", f"{format_number(middle)} samples/s", spread)]
        if run.batch_size:
            milliseconds = f"{1000 * run.batch_size / middle:,.3g} ms"
            facts.append(html.Fact("a step takes", milliseconds, f"{run.batch_size:,} samples"))
        parts.append(html.Facts(facts))
    times = time_summary(run.metrics, run.tags.get(STRAGGLER_TAG, ""))
    if times:
        heading = times.heading()
        caption = f"{heading[0].upper()}{heading[1:]}. {'; '.join(times.sentences())}"
        parts.append(html.Table(["phase", "seconds", "share", "ms a step"], times.rows(), caption))
    parts += _plain_charts(run, "speed", [SPEED, _DATA_WAIT])
    phases = [name for name in run.named("time/") if name != FIGURES_TIME]
    folded = [
        ("Utilisation and memory", _plain_charts(run, "utilisation", run.named("perf/"))),
        ("Seconds a step by phase", _plain_charts(run, "phases", phases)),
    ]
    return html.Section("Speed", parts, "speed", [each for each in folded if each[1]])


def _plain_charts(run: RunContent, place: str, names: Iterable[str]) -> list[html.Part]:
    """A chart of one curve for each metric."""
    return _charts(run, place, {name: [(name, name.rpartition("/")[2], "other")] for name in names})


def _charts(
    run: RunContent, place: str, curves: Mapping[str, list[tuple[str, str, str]]]
) -> list[html.Part]:
    """Charts by title, of curves (metric, label, role), with keys of their own: names may hold what
    no key does.
    """
    drawn: list[Chart] = []
    for title, wanted in curves.items():
        points = [
            CurvePoints(label, run.metrics[name].steps, run.metrics[name].values, role)
            for name, label, role in wanted
            if name in run.metrics
        ]
        if len(drawn) == MOST_CHARTS:
            break
        chart = draw_chart(title, points)
        if chart:
            drawn.append(replace(chart, key=f"chart-{place}-{len(drawn) + 1}"))
    captions = [_THINNED] if any(chart.is_thinned for chart in drawn) else []
    if len(curves) > MOST_CHARTS:
        more = len(curves) - MOST_CHARTS
        captions.append(
            f"{more:,} more metrics are not drawn; MLflow and `Run.metrics()` have them."
        )
    if drawn:
        return [html.ChartGrid(drawn, " ".join(captions))]
    return []


def _timeline(run: RunContent) -> html.Section:
    """When the run was trained, what failed, and how it went on."""
    if not run.attempts:
        return html.Section(
            "Timeline", [html.Notice("The journal holds no start of this run.")], "timeline"
        )
    times = [event.time for event in run.events]
    begin = min([run.attempts[0].begin, *times])
    end = max([*(attempt.end for attempt in run.attempts), *times, begin + 1])

    def place(time: int) -> float:
        return min(max(100 * (time - begin) / (end - begin), 0.0), 100.0)

    bars = []
    texts = []
    for number, attempt in enumerate(run.attempts, start=1):
        left = place(attempt.begin)
        duration = format_duration((attempt.end - attempt.begin) / 1000)
        texts.append(
            f"attempt {number} from {_moment(attempt.begin)}, {duration}, {attempt.status}"
        )
        bars.append(
            html.TimeMark(left, attempt.status, texts[-1], max(place(attempt.end) - left, 0.0))
        )
    newest = sorted(run.events, key=lambda event: (event.kind in _LISTED, event.time))[
        -_MOST_EVENTS:
    ]
    listed = []
    for event in sorted(newest, key=lambda event: event.time):
        iso = datetime.fromtimestamp(event.time / 1000, UTC).isoformat(timespec="seconds")
        listed.append(
            html.TimeEvent(
                _moment(event.time), iso, event.kind, shorten(event.text, _MOST_CHARACTERS)
            )
        )
    caption = "Bars: attempts."
    num_unlisted = len(run.events) - len(listed)
    if num_unlisted:
        caption += f" {num_unlisted:,} events are not listed; `ditlab runs log` prints all."
    num = Counter(event.kind for event in run.events)
    texts.append(
        f"{num['failure']} failures, {num['recovery']} recoveries, {run.num_bad_steps} steps "
        "with NaN or infinity"
    )
    about = f"{len(run.attempts)} attempts: {'; '.join(texts)}."
    timeline = html.Timeline(bars, (_moment(begin), _moment(end)), listed, about, caption)
    return html.Section("Timeline", [timeline], "timeline")


def _moment(time: int) -> str:
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _parameters(run: RunContent) -> html.Section:
    total = run.parameters.get("total", 0)
    parts = {
        name: number
        for name, number in run.parameters.items()
        if name not in ("total", "trainable", "frozen")
    }
    rows: list[list[Cell]] = [
        [name, number, f"{number / max(total, 1):.1%}"] for name, number in parts.items()
    ]
    if rows:
        rows.append(["total", total, ""])
    trainable = run.parameters.get("trainable", total)
    if trainable != total:
        rows.append(["trainable", trainable, ""])
        rows.append(["frozen", total - trainable, ""])
    table = [html.Table(["component", "parameters", "share"], rows)] if rows else []
    return html.Section("Parameters by component", table, "parameters")


def _data(run: RunContent) -> html.Section:
    data = run.facts.dataset
    rows: list[list[Cell]] = [
        [name, hide(data[name])] for name in ("name", "source", "fingerprint") if data
    ]
    counts = data.get("counts", {})
    rows += [[name.replace("_", " "), f"{number:,}"] for name, number in counts.items()]
    num_train = counts.get("train")
    if run.batch_size and num_train:
        seen = run.step * run.batch_size
        epochs = ""
        if data["source"] != "mixture":
            epochs = f" ({format_number(seen / num_train)} epochs)"
        rows.append(["samples seen", f"{seen:,}{epochs}"])
    return html.Section("Data", [html.Table(["", ""], rows)] if rows else [], "data")
