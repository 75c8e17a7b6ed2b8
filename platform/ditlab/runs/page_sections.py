"""Sections of a run's page: result, curves, samples, speed, timeline, spec, data, next commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ditlab.reports import page as html
from ditlab.reports.charts import Chart, CurvePoints, draw_chart
from ditlab.reports.formatting import Cell, format_duration, format_number, shorten
from ditlab.reports.time_summary import time_summary
from ditlab.runs.events import RunEvent
from ditlab.secrets import hide
from ditlab.tracking.history import SPEED, Series
from ditlab.tracking.records import RunRecord

TRAIN, HELD_OUT = "train/", "eval/"
"""Prefixes of the metrics of steps and of evaluations."""
TRAIN_LOSS = "train/loss"
_OPTIMISER = [f"{TRAIN}{name}" for name in ("grad_norm", "lr")]
_DATA_WAIT = "train/data_wait"
MOST_CHARTS = 40
"""Charts of one section; the others are counted in a sentence."""
_THINNED = (
    "Lines of many points: the median of each stretch of steps; the area around it: its lowest to its highest value."
)
_MOST_EVENTS, _MOST_MARKS, _MOST_CHARACTERS = 240, 400, 1000
_LISTED = frozenset({"start", "data", "failure", "recovery", "state", "end"})
"""Kinds of events that are listed before all others where there are too many to list all."""
_MARKED = frozenset({"evaluation", "checkpoint", "failure", "recovery"})


@dataclass(frozen=True)
class RunAttempt:
    """One start of a run, up to its end or to the next start."""

    begin: int
    end: int
    """Milliseconds since 1970."""
    status: str
    """`finished`, `failed`, `interrupted`, `stopped`, `running`, or `killed` where it ended without a record."""

    def text(self, number: int) -> str:
        """The attempt in words."""
        duration = format_duration((self.end - self.begin) / 1000)
        return f"attempt {number} from {_moment(self.begin)}, {duration}, {self.status}"


@dataclass(frozen=True)
class RunContent:
    """All that a run's page shows, read from the run's files. What is missing is empty, and `notes` says why."""

    record: RunRecord
    status: str
    step: int
    is_live: bool
    """True if a process trains it now."""
    components: Sequence[str]
    """Loss components, the heaviest first."""
    metrics: Mapping[str, Series]
    samples: Sequence[html.Part]
    figures: Sequence[html.NamedPicture]
    attempts: Sequence[RunAttempt]
    events: Sequence[RunEvent]
    spec: str
    """The resolved YAML."""
    changes: Sequence[html.Part]
    """Differences of the spec, the nearest parent first."""
    parameters: Mapping[str, int]
    """Parameters by component, with `total` and `trainable`."""
    data: Mapping[str, Any]
    """The journal's record of the training data; empty without one."""
    batch_size: int
    checkpoints: Sequence[int]
    """Steps of the checkpoints in the run's folder."""
    commands: Mapping[str, str]
    """Commands by their purpose."""
    tags: Mapping[str, str]
    environment: str
    notes: Sequence[str]
    """Sentences on what is missing or damaged."""

    @property
    def seconds(self) -> float:
        """Seconds of all attempts."""
        return sum(max(0, attempt.end - attempt.begin) for attempt in self.attempts) / 1000

    @property
    def main_metric(self) -> str | None:
        """Held-out value of the heaviest loss component that was evaluated."""
        names = [*(f"{HELD_OUT}{name}" for name in self.components), *self.named(HELD_OUT)]
        return next((name for name in names if name in self.metrics and len(self.metrics[name].values)), None)

    @property
    def speeds(self) -> np.ndarray:
        """Samples a second by step; empty where they are unknown."""
        values = self.metrics[SPEED].values if SPEED in self.metrics else np.array([])
        return values[np.isfinite(values) & (values > 0)]

    @property
    def num_bad_steps(self) -> int:
        """Steps whose training loss was NaN or infinite."""
        return int((~np.isfinite(self.metrics[TRAIN_LOSS].values)).sum()) if TRAIN_LOSS in self.metrics else 0

    def named(self, *prefixes: str) -> list[str]:
        """Names of the metrics that begin with one of the prefixes."""
        return sorted(name for name in self.metrics if name.startswith(prefixes))


def run_page(run: RunContent) -> html.Page:
    """The page of a run; parts that it has nothing for are skipped or say so."""
    no_samples = html.Paragraphs("The run has drawn no samples yet, or draws none.")
    commands = "\n".join(f"{command}   # {purpose}" for purpose, command in run.commands.items())
    whole_spec = [("The whole spec", [html.Code(run.spec, "yaml")])] if run.spec else []
    software: list[tuple[str, list[html.Part]]] = []
    if run.tags:
        software.append(("Tags", [html.Table(["tag", "value"], list(run.tags.items()))]))
    if run.environment:
        software.append(("Packages and their versions", [html.Code(run.environment)]))
    sections = [
        _result(run), _curves(run), html.Section("Samples", run.samples or [no_samples], "samples"), _quality(run),
        html.Section("Figures", [html.Pictures(run.figures)] if run.figures else [], "figures"), _speed(run),
        _timeline(run),
        html.Section("Spec", run.changes, "spec", whole_spec), _parameters(run), _data(run),
        html.Section("Next commands", [html.Code(commands, "shell")], "commands"),
        html.Section("Software and machine", [], "software", software),
    ]  # fmt: skip
    progress = min(run.step / run.record.total_steps, 1.0) if run.is_live and run.record.total_steps else None
    kept = [section for section in sections if section.parts or section.folded]
    title = f"{hide(run.record.name)} ({run.record.run_id})"
    return html.Page(title, _summary(run), kept, "running" if run.is_live else run.status, progress)


def _summary(run: RunContent) -> str:
    total = run.parameters.get("total")
    size = f", {total:,} parameters" if total else ""
    data = f" on {hide(run.data['name'])}" if run.data else ""
    ends = {"interrupted": "was interrupted", "stopped": "was stopped", "running": "has no end in its record"}
    state = "is training" if run.is_live else ends.get(run.status, run.status)
    time = f" in {format_duration(run.seconds)}" if run.seconds else ""
    sentences = [
        f"A {run.record.family} model{size}{data}: {state} at step {run.step:,} of {run.record.total_steps:,}{time}."
    ]
    if TRAIN_LOSS in run.metrics:
        sentences.append(f"Training loss {format_number(float(run.metrics[TRAIN_LOSS].values[-1]))}.")
    if main := run.main_metric:
        values = run.metrics[main].values
        first = f", from {format_number(float(values[0]))} at the first evaluation" if len(values) > 1 else ""
        sentences.append(f"Held-out {main.removeprefix(HELD_OUT)} {format_number(float(values[-1]))}{first}.")
    if run.record.message and not run.is_live:
        sentences.append(f"Reason: {hide(run.record.message)}")
    return " ".join(sentences)


def _result(run: RunContent) -> html.Section:
    facts = [html.Fact("step", f"{run.step:,}", f"of {run.record.total_steps:,}")]
    if TRAIN_LOSS in run.metrics:
        facts.append(html.Fact("training loss", format_number(float(run.metrics[TRAIN_LOSS].values[-1]))))
    if main := run.main_metric:
        series, name = run.metrics[main], main.removeprefix(HELD_OUT)
        places = {f"held-out {name}": len(series.values) - 1}
        if np.isfinite(series.values).any():
            places[f"lowest {name}"] = int(np.nanargmin(np.where(np.isfinite(series.values), series.values, np.nan)))
        for what, place in places.items():
            value = format_number(float(series.values[place]))
            facts.append(html.Fact(what, value, f"step {int(series.steps[place]):,}"))
    if len(run.speeds):
        facts.append(html.Fact("samples/s", format_number(float(np.median(run.speeds))), "median"))
    if run.seconds:
        num = len(run.attempts)
        facts.append(html.Fact("time", format_duration(run.seconds), f"in {num} attempts" if num > 1 else ""))
    if total := run.parameters.get("total"):
        facts.append(html.Fact("parameters", f"{total:,}"))
    if run.checkpoints:
        facts.append(html.Fact("checkpoint", f"step {run.checkpoints[-1]:,}", f"{len(run.checkpoints)} kept here"))
    if run.num_bad_steps:
        facts.append(html.Fact("steps with NaN or infinity", f"{run.num_bad_steps:,}"))
    return html.Section("Result", [html.Facts(facts), *map(html.Notice, run.notes)], "result")


def _curves(run: RunContent) -> html.Section:
    """Charts by loss component, training and held-out values in one; parts of a mixture, optimiser, machine folded."""
    trained = [name.removeprefix(TRAIN) for name in run.metrics if name.startswith(TRAIN)]
    held_out = [name.removeprefix(HELD_OUT) for name in run.metrics if name.startswith(HELD_OUT)]
    of_parts = [name for name in held_out if "/" in name]  # `NAME/velocity`, of one part of a mixture
    skipped = {name.removeprefix(TRAIN) for name in (*_OPTIMISER, SPEED, _DATA_WAIT)} | {*of_parts}
    curves = {
        name: [(f"{TRAIN}{name}", "train", "train"), (f"{HELD_OUT}{name}", "held out", "held-out")]
        for name in dict.fromkeys(["loss", *run.components, *trained, *held_out])
        if name in {*trained, *held_out} - skipped
    }
    parts = _charts(run, "loss", curves)
    if not parts:
        parts = [html.Notice("The journal holds no metrics of this run yet.")]
    elif not held_out:
        text = "The run was not evaluated on held-out samples, so the curves are the training's alone."
        parts.append(html.Paragraphs(text))
    by_part = _plain_charts(run, "parts", [f"{HELD_OUT}{name}" for name in of_parts])
    folded = [("Held-out samples of each part", by_part), ("Optimiser", _plain_charts(run, "optimiser", _OPTIMISER)),
              ("Load of the machine", _plain_charts(run, "machine", run.named("system/")))]  # fmt: skip
    return html.Section("Curves", parts, "curves", [each for each in folded if each[1]])


def _quality(run: RunContent) -> html.Section:
    """Quality of the samples, and what `ditlab evaluate` measured."""
    measured = run.named("quality/")
    names = [*measured, *run.named("held_out/", "assessed/")]
    rows: list[list[Cell]] = []
    for name in names:
        steps, values = run.metrics[name].steps, run.metrics[name].values
        best = float(np.nanmin(values)) if np.isfinite(values).any() else np.nan
        rows.append([name, float(values[-1]), int(steps[-1]), best, len(values)])
    about = "Distances to this data set's real images: they compare runs on the same data, never with published FID."
    heads = ["metric", "last value", "at step", "lowest", "measurements"]
    table = [html.Table(heads, rows, about if measured else "")] if rows else []
    several = [name for name in names if len(run.metrics[name].values) > 1]
    return html.Section("Quality of the samples", [*table, *_plain_charts(run, "quality", several)], "quality")


def _speed(run: RunContent) -> html.Section:
    """Samples a second and the wait for data over the steps, and where the time went."""
    parts: list[html.Part] = []
    if len(run.speeds):
        low, middle, high = (float(speed) for speed in np.quantile(run.speeds, (0.05, 0.5, 0.95)))
        facts = [html.Fact("median", f"{_pace(middle)} samples/s", f"9 of 10 steps: {_pace(low)} to {_pace(high)}")]
        if run.batch_size:
            milliseconds = f"{1000 * run.batch_size / middle:,.3g} ms"
            facts.append(html.Fact("a step takes", milliseconds, f"{run.batch_size:,} samples"))
        parts.append(html.Facts(facts))
    if times := time_summary(run.metrics, run.tags.get("ditlab.straggler", "")):
        rows: list[list[str | float | None]]
        rows = [[each.name, each.seconds, f"{each.share:.1%}", each.step_ms] for each in times.shares()]
        heading = times.heading()
        caption = f"{heading[0].upper()}{heading[1:]}. {'; '.join(times.sentences())}"
        parts.append(html.Table(["phase", "seconds", "share", "ms a step"], rows, caption))
    parts += _plain_charts(run, "speed", [SPEED, _DATA_WAIT])
    folded = [("Utilisation and memory", _plain_charts(run, "utilisation", run.named("perf/"))),
              ("Seconds a step by phase", _plain_charts(run, "phases", run.named("time/")))]  # fmt: skip
    return html.Section("Speed", parts, "speed", [each for each in folded if each[1]])


def _pace(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _plain_charts(run: RunContent, place: str, names: Iterable[str]) -> list[html.Part]:
    """A chart of one curve for each metric."""
    return _charts(run, place, {name: [(name, name.rpartition("/")[2], "other")] for name in names})


def _charts(run: RunContent, place: str, curves: Mapping[str, list[tuple[str, str, str]]]) -> list[html.Part]:
    """Charts by title, of curves (metric, label, role), with keys of their own: names may hold what no key does."""
    drawn: list[Chart] = []
    for title, wanted in curves.items():
        points = [
            CurvePoints(label, run.metrics[name].steps, run.metrics[name].values, role)
            for name, label, role in wanted
            if name in run.metrics
        ]
        if len(drawn) < MOST_CHARTS and (chart := draw_chart(title, points)):
            drawn.append(chart.with_key(f"chart-{place}-{len(drawn) + 1}"))
    captions = [_THINNED] if any(chart.is_thinned for chart in drawn) else []
    if len(curves) > MOST_CHARTS:
        more = len(curves) - MOST_CHARTS
        captions.append(f"{more:,} more metrics are not drawn; MLflow and `Run.metrics()` have them.")
    return [html.ChartGrid(drawn, " ".join(captions))] if drawn else []


def _timeline(run: RunContent) -> html.Section:
    """When the run was trained, what failed, and how it went on."""
    if not run.attempts:
        return html.Section("Timeline", [html.Notice("The journal holds no start of this run.")], "timeline")
    times = [event.time for event in run.events]
    begin = min([run.attempts[0].begin, *times])
    end = max([*(attempt.end for attempt in run.attempts), *times, begin + 1])

    def place(time: int) -> float:
        return min(max(100 * (time - begin) / (end - begin), 0.0), 100.0)

    bars, texts = [], []
    for number, attempt in enumerate(run.attempts, start=1):
        left = place(attempt.begin)
        texts.append(attempt.text(number))
        bars.append(html.TimeBar(left, max(place(attempt.end) - left, 0.0), attempt.status, texts[-1]))
    marked = [event for event in run.events if event.kind in _MARKED]
    if len(marked) > _MOST_MARKS:
        marked = [event for event in marked if event.kind in ("failure", "recovery")][:_MOST_MARKS]
    marks = [html.TimeMark(place(event.time), event.kind, shorten(event.text, 200)) for event in marked]
    newest = sorted(run.events, key=lambda event: (event.kind in _LISTED, event.time))[-_MOST_EVENTS:]
    listed = []
    for event in sorted(newest, key=lambda event: event.time):
        iso = datetime.fromtimestamp(event.time / 1000, UTC).isoformat(timespec="seconds")
        listed.append(html.TimeEvent(_moment(event.time), iso, event.kind, shorten(event.text, _MOST_CHARACTERS)))
    caption = (
        "Bars: attempts. Marks: evaluations below, checkpoints that are kept above, failures and recoveries across."
    )
    if left_out := len(run.events) - len(listed):
        caption += f" {left_out:,} events are not listed; `ditlab runs log` prints all."
    num = {kind: sum(event.kind == kind for event in run.events) for kind in ("failure", "recovery")}
    texts.append(
        f"{num['failure']} failures, {num['recovery']} recoveries, {run.num_bad_steps} steps with NaN or infinity"
    )
    about = f"{len(run.attempts)} attempts: {'; '.join(texts)}."
    timeline = html.Timeline(bars, marks, (_moment(begin), _moment(end)), listed, about, caption)
    return html.Section("Timeline", [timeline], "timeline")


def _moment(time: int) -> str:
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _parameters(run: RunContent) -> html.Section:
    total = run.parameters.get("total", 0)
    parts = {name: number for name, number in run.parameters.items() if name not in ("total", "trainable")}
    rows: list[list[Cell]] = [
        [name, number, f"{number / total:.1%}" if total else ""] for name, number in parts.items()
    ]
    if rows or total:
        rows.append(["total", total, ""])
    if (trainable := run.parameters.get("trainable", total)) != total:
        rows.append(["trainable", trainable, ""])
    table = [html.Table(["component", "parameters", "share"], rows)] if rows else []
    return html.Section("Parameters by component", table, "parameters")


def _data(run: RunContent) -> html.Section:
    rows: list[list[Cell]] = [[name, hide(run.data[name])] for name in ("name", "source", "fingerprint") if run.data]
    counts = run.data.get("counts", {})
    rows += [[name.replace("_", " "), f"{number:,}"] for name, number in counts.items()]
    if run.batch_size and (train := counts.get("train")):
        seen = run.step * run.batch_size
        epochs = "" if run.data["source"] == "mixture" else f" ({format_number(seen / train)} epochs)"
        rows.append(["samples seen", f"{seen:,}{epochs}"])
    return html.Section("Data", [html.Table(["", ""], rows)] if rows else [], "data")
