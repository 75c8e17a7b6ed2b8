"""Sections of a run's page: result, curves, samples, speed, timeline, spec, data, next commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ditlab.reports.charts import Chart, CurvePoints, draw_chart
from ditlab.reports.formatting import Cell, format_duration, format_number, shorten
from ditlab.reports.page import (
    ChartGrid,
    Code,
    Fact,
    Facts,
    NamedPicture,
    Notice,
    Page,
    Paragraphs,
    Part,
    Pictures,
    Section,
    Table,
    TimeBar,
    TimeEvent,
    Timeline,
    TimeMark,
)
from ditlab.reports.time_summary import time_summary
from ditlab.runs.events import RunEvent
from ditlab.secrets import hide
from ditlab.tracking.history import SPEED, Series
from ditlab.tracking.records import RunRecord

TRAIN, HELD_OUT = "train/", "eval/"
"""Prefixes of the metrics of steps and of evaluations."""
TRAIN_LOSS = "train/loss"
_DATA_WAIT = "train/data_wait"
_MOST_ROWS = 500
_MOST_TITLE = 120
_MOST_TEXT = 200_000
_MOST_NOTES = 30
_TEXT = 4000
"""Most characters of a value in a table."""
MOST_CHARTS = 40
"""Charts of one section; the others are named in a sentence."""
_OPTIMISER = ("grad_norm", "lr")
_MACHINE = "system/"
_LATER = ("held_out/", "assessed/")
"""Prefixes of metrics that `ditlab evaluate` adds."""
_QUALITY_CAPTION = (
    "Distances to this data set's real images: they compare runs on the same data, never with published FID."
)
_THINNED = (
    "Lines of many points: the median of each stretch of steps; the area around it: its lowest to its highest value."
)
_MOST_EVENTS = 240
_MOST_MARKS = 400
_MOST_CHARACTERS = 1000
_LISTED = frozenset({"start", "data", "failure", "recovery", "state", "end"})
"""Kinds of events that are listed whenever there are too many to list all."""
_MARKED = frozenset({"evaluation", "checkpoint", "failure", "recovery"})


@dataclass(frozen=True)
class RunAttempt:
    """One start of a run, up to its end or to the next start."""

    begin: int
    end: int
    """Milliseconds since 1970."""
    status: str
    """`finished`, `failed`, `interrupted`, `stopped`, `running`, or `killed` where it ended without a record."""


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
    samples: Sequence[Part]
    figures: Sequence[NamedPicture]
    attempts: Sequence[RunAttempt]
    events: Sequence[RunEvent]
    spec: str
    """The resolved YAML."""
    changes: Sequence[Part]
    """Differences of the spec, the nearest parent first."""
    parameters: Mapping[str, int]
    """Parameters by component, with `total` and `trainable`."""
    data: Mapping[str, Any]
    """The journal's record of the training data; empty without one."""
    batch_size: int
    checkpoints: Sequence[int]
    """Steps of the checkpoints in the run's folder."""
    commands: Sequence[tuple[str, str]]
    """Purpose of a command, and the command."""
    tags: Mapping[str, str]
    environment: str
    notes: Sequence[str]
    """Sentences on what is missing or damaged."""


def run_page(run: RunContent) -> Page:
    """The page of a run; parts that it has nothing for are skipped or say so."""
    sections = [
        _result(run), _curves_section(run), _samples(run), _quality_section(run), _figures(run), _speed_section(run),
        _timeline_section(run), _spec(run), _parameters(run), _data(run), _commands(run), _software(run),
    ]  # fmt: skip
    progress = run.step / run.record.total_steps if run.is_live and run.record.total_steps else None
    title = f"{shorten(hide(run.record.name), _MOST_TITLE)} ({run.record.run_id})"
    status = "running" if run.is_live else run.status
    kept = [section for section in sections if section and (section.parts or section.folded)]
    return Page(title, _summary(run), kept, status, None if progress is None else min(progress, 1.0))


def _summary(run: RunContent) -> str:
    total = run.parameters.get("total")
    size = f", {total:,} parameters" if total else ""
    data = f" on {shorten(hide(run.data['name']), _MOST_TITLE)}" if run.data else ""
    ends = {"finished": "finished", "failed": "failed", "interrupted": "was interrupted", "stopped": "was stopped"}
    ends["running"] = "has no end in its record"
    state = "is training" if run.is_live else ends.get(run.status, run.status)
    seconds = _training_seconds(run)
    time = f" in {format_duration(seconds)}" if seconds else ""
    sentences = [
        f"A {run.record.family} model{size}{data}: {state} at step {run.step:,} of {run.record.total_steps:,}{time}."
    ]
    loss = _last(run, TRAIN_LOSS)
    if loss is not None:
        sentences.append(f"Training loss {format_number(loss)}.")
    if main := _main_metric(run):
        values = run.metrics[main].values
        name = main.removeprefix(HELD_OUT)
        first = f", from {format_number(float(values[0]))} at the first evaluation" if len(values) > 1 else ""
        sentences.append(f"Held-out {shorten(name, _MOST_TITLE)} {format_number(float(values[-1]))}{first}.")
    if run.record.message and not run.is_live:
        sentences.append(f"Reason: {shorten(hide(run.record.message), _TEXT)}")
    return " ".join(sentences)


def _main_metric(run: RunContent) -> str | None:
    """Held-out value of the heaviest loss component that was evaluated."""
    names = [f"{HELD_OUT}{name}" for name in run.components]
    names += sorted(name for name in run.metrics if name.startswith(HELD_OUT))
    return next((name for name in names if name in run.metrics and len(run.metrics[name].values)), None)


def _last(run: RunContent, name: str) -> float | None:
    series = run.metrics.get(name)
    return float(series.values[-1]) if series is not None and len(series.values) else None


def _result(run: RunContent) -> Section:
    facts = [Fact("step", f"{run.step:,}", f"of {run.record.total_steps:,}")]
    if (loss := _last(run, TRAIN_LOSS)) is not None:
        facts.append(Fact("training loss", format_number(loss)))
    if main := _main_metric(run):
        series = run.metrics[main]
        name = shorten(main.removeprefix(HELD_OUT), 40)
        facts.append(
            Fact(f"held-out {name}", format_number(float(series.values[-1])), f"step {int(series.steps[-1]):,}")
        )
        if np.isfinite(series.values).any():
            best = int(np.nanargmin(np.where(np.isfinite(series.values), series.values, np.nan)))
            lowest = format_number(float(series.values[best]))
            facts.append(Fact(f"lowest {name}", lowest, f"step {int(series.steps[best]):,}"))
    if (speed := _median_speed(run)) is not None:
        facts.append(Fact("samples/s", format_number(speed), "median"))
    if seconds := _training_seconds(run):
        num = len(run.attempts)
        facts.append(Fact("time", format_duration(seconds), f"in {num} attempts" if num > 1 else ""))
    if total := run.parameters.get("total"):
        facts.append(Fact("parameters", f"{total:,}"))
    if run.checkpoints:
        facts.append(Fact("checkpoint", f"step {run.checkpoints[-1]:,}", f"{len(run.checkpoints)} kept here"))
    if bad := _num_bad_steps(run):
        facts.append(Fact("steps with NaN or infinity", f"{bad:,}"))
    notes: list[Part] = [Notice(shorten(note, _TEXT)) for note in run.notes[:_MOST_NOTES]]
    return Section("Result", [Facts(facts), *notes], "result")


def _samples(run: RunContent) -> Section:
    none = Paragraphs("The run has drawn no samples yet, or draws none.")
    return Section("Samples", run.samples or [none], "samples")


def _figures(run: RunContent) -> Section | None:
    return Section("Figures", [Pictures(run.figures)], "figures") if run.figures else None


def _spec(run: RunContent) -> Section:
    text = run.spec[:_MOST_TEXT] + ("\n# shortened here\n" if len(run.spec) > _MOST_TEXT else "")
    folded: list[tuple[str, list[Part]]] = [("The whole spec", [Code(text, "yaml")])] if text else []
    return Section("Spec", run.changes, "spec", folded)


def _cell(value: Cell) -> Cell:
    return shorten(value, _TEXT) if isinstance(value, str) else value


def _parameters(run: RunContent) -> Section | None:
    total = run.parameters.get("total", 0)
    components = {name: num for name, num in run.parameters.items() if name not in ("total", "trainable")}
    if not components and not total:
        return None
    rows: list[list[Cell]] = [[shorten(name, _MOST_TITLE), number, f"{number / total:.1%}" if total else ""]
                              for name, number in list(components.items())[:_MOST_ROWS]]  # fmt: skip
    rows.append(["total", total, ""])
    trainable = run.parameters.get("trainable", total)
    if trainable != total:
        rows.append(["trainable", trainable, ""])
    return Section("Parameters by component", [Table(["component", "parameters", "share"], rows)], "parameters")


def _data(run: RunContent) -> Section | None:
    if not run.data:
        return None
    counts, is_mixture = run.data["counts"], run.data["source"] == "mixture"
    rows: list[list[Cell]] = [[name, _cell(hide(run.data[name]))] for name in ("name", "source", "fingerprint")]
    rows += [[name.replace("_", " "), f"{number:,}"] for name, number in list(counts.items())[:_MOST_ROWS]]
    if run.batch_size and (train := counts.get("train")):
        epochs = "" if is_mixture else f" ({format_number(run.step * run.batch_size / train)} epochs)"
        rows.append(["samples seen", f"{run.step * run.batch_size:,}{epochs}"])
    return Section("Data", [Table(["", ""], rows)], "data")


def _commands(run: RunContent) -> Section | None:
    if not run.commands:
        return None
    text = "\n".join(f"{command}   # {purpose}" for purpose, command in run.commands)
    return Section("Next commands", [Code(text, "shell")], "commands")


def _software(run: RunContent) -> Section | None:
    folded: list[tuple[str, list[Part]]] = []
    if run.tags:
        rows: list[list[Cell]] = [[shorten(name, _MOST_TITLE), shorten(value, _TEXT)]
                                  for name, value in list(run.tags.items())[:_MOST_ROWS]]  # fmt: skip
        folded.append(("Tags", [Table(["tag", "value"], rows)]))
    if run.environment:
        folded.append(("Packages and their versions", [Code(run.environment[:_MOST_TEXT])]))
    return Section("Software and machine", [], "software", folded) if folded else None


def _curves_section(run: RunContent) -> Section:
    """Charts by loss component, training and held-out values in one; optimiser and machine folded."""
    names = _loss_names(run)
    charts = [_chart(run, name, [(f"{TRAIN}{name}", "train", "train"), (f"{HELD_OUT}{name}", "held out", "held-out")])
              for name in names[:MOST_CHARTS]]  # fmt: skip
    parts = _grid("loss", charts, names[MOST_CHARTS:])
    if not parts:
        parts = [Notice("The journal holds no metrics of this run yet.")]
    elif not any(name.startswith(HELD_OUT) for name in run.metrics):
        parts.append(
            Paragraphs("The run was not evaluated on held-out samples, so the curves are the training's alone.")
        )
    by_part = [name for name in run.metrics if name.startswith(HELD_OUT) and _is_of_part(name.removeprefix(HELD_OUT))]
    folded = [("Held-out samples of each part", _plain_charts(run, "parts", by_part))]
    folded += [("Optimiser", _plain_charts(run, "optimiser", [f"{TRAIN}{name}" for name in _OPTIMISER]))]
    machine = sorted(name for name in run.metrics if name.startswith(_MACHINE))
    folded.append(("Load of the machine", _plain_charts(run, "machine", machine)))
    return Section("Curves", parts, "curves", [each for each in folded if each[1]])


def _loss_names(run: RunContent) -> list[str]:
    """Metrics without their prefix: the loss, its components by weight, then what only evaluations measure."""
    trained = [name.removeprefix(TRAIN) for name in run.metrics if name.startswith(TRAIN)]
    held_out = [name.removeprefix(HELD_OUT) for name in run.metrics if name.startswith(HELD_OUT)]
    skipped = {*_OPTIMISER, SPEED.removeprefix(TRAIN), _DATA_WAIT.removeprefix(TRAIN)}
    known = dict.fromkeys(["loss", *run.components, *trained, *(name for name in held_out if not _is_of_part(name))])
    return [name for name in known if (name in trained or name in held_out) and name not in skipped]


def _is_of_part(name: str) -> bool:
    """Return True for a held-out metric of one part of a mixture: `NAME/velocity`."""
    return "/" in name


def _quality_section(run: RunContent) -> Section | None:
    """Quality of the samples, and what `ditlab evaluate` measured; None where there is neither."""
    measured = sorted(name for name in run.metrics if name.startswith("quality/"))
    later = sorted(name for name in run.metrics if name.startswith(_LATER))
    if not measured and not later:
        return None
    rows: list[list[Cell]] = []
    for name in [*measured, *later]:
        series = run.metrics[name]
        best = np.nanmin(series.values) if np.isfinite(series.values).any() else np.nan
        rows.append([name, float(series.values[-1]), int(series.steps[-1]), float(best), len(series.values)])
    caption = _QUALITY_CAPTION if measured else ""
    table = Table(["metric", "last value", "at step", "lowest", "measurements"], rows[:200], caption)
    several = [name for name in [*measured, *later] if len(run.metrics[name].values) > 1]
    return Section("Quality of the samples", [table, *_plain_charts(run, "quality", several)], "quality")


def _speed_section(run: RunContent) -> Section | None:
    """Samples a second and the wait for data over the steps, and the time of training; None without a speed."""
    if SPEED not in run.metrics:
        return None
    values, facts = _speeds(run), []
    if len(values):
        low, middle, high = (float(np.quantile(values, share)) for share in (0.05, 0.5, 0.95))
        facts = [
            Fact("median", f"{_pace(middle)} samples/s", f"9 of 10 steps: {_pace(low)} to {_pace(high)}"),
            *([Fact("a step takes", f"{1000 * run.batch_size / middle:,.3g} ms", f"{run.batch_size:,} samples")]
              if run.batch_size else []),
        ]  # fmt: skip
    parts: list[Part] = [Facts(facts)] if facts else []
    folded = [("Utilisation and memory", _plain_charts(run, "utilisation", _named(run, "perf/"))),
              ("Seconds a step by phase", _plain_charts(run, "phases", _named(run, "time/")))]  # fmt: skip
    parts += [*_times(run), *_plain_charts(run, "speed", [SPEED, _DATA_WAIT])]
    return Section("Speed", parts, "speed", [each for each in folded if each[1]])


def _times(run: RunContent) -> list[Part]:
    """Table of where the time went; nothing where the run has logged no times."""
    times = time_summary(run.metrics, run.tags.get("ditlab.straggler", ""))
    if times is None:
        return []
    rows: list[list[Cell]] = [[each.name, each.seconds, f"{each.share:.1%}", each.step_ms] for each in times.shares()]
    heading = times.heading()
    caption = f"{heading[0].upper()}{heading[1:]}. {'; '.join(times.sentences())}"
    return [Table(["phase", "seconds", "share", "ms a step"], rows, caption)]


def _named(run: RunContent, prefix: str) -> list[str]:
    return sorted(name for name in run.metrics if name.startswith(prefix))


def _median_speed(run: RunContent) -> float | None:
    """Median samples a second; None where it is unknown."""
    values = _speeds(run) if SPEED in run.metrics else ()
    return float(np.median(values)) if len(values) else None


def _speeds(run: RunContent) -> np.ndarray:
    values = run.metrics[SPEED].values
    return values[np.isfinite(values) & (values > 0)]


def _num_bad_steps(run: RunContent) -> int:
    """Steps whose training loss was NaN or infinite."""
    series = run.metrics.get(TRAIN_LOSS)
    return 0 if series is None else int((~np.isfinite(series.values)).sum())


def _pace(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"


def _plain_charts(run: RunContent, place: str, names: Iterable[str]) -> list[Part]:
    known = [name for name in names if name in run.metrics]
    charts = [_chart(run, name, [(name, name.rpartition("/")[2], "other")]) for name in known[:MOST_CHARTS]]
    return _grid(place, charts, known[MOST_CHARTS:])


def _chart(run: RunContent, title: str, curves: Iterable[tuple[str, str, str]]) -> Chart | None:
    found = [
        CurvePoints(label, run.metrics[name].steps, run.metrics[name].values, role)
        for name, label, role in curves
        if name in run.metrics
    ]
    return draw_chart(title, found)


def _grid(place: str, charts: Iterable[Chart | None], skipped: list[str]) -> list[Part]:
    """Charts with keys of their own: names of metrics may differ in characters that no key holds."""
    drawn = [chart.with_key(f"chart-{place}-{number}") for number, chart in enumerate(filter(None, charts), start=1)]
    captions = [_THINNED] if any(chart.is_thinned for chart in drawn) else []
    if skipped:
        captions.append(f"{len(skipped):,} more metrics are not drawn; MLflow and `Run.metrics()` have them.")
    return [ChartGrid(drawn, " ".join(captions))] if drawn else []


def _timeline_section(run: RunContent) -> Section:
    """When the run was trained, what failed, and how it went on."""
    if not run.attempts:
        return Section("Timeline", [Notice("The journal holds no start of this run.")], "timeline")
    begin = min([run.attempts[0].begin, *(event.time for event in run.events)])
    end = max([*(attempt.end for attempt in run.attempts), *(event.time for event in run.events), begin + 1])
    bars = [_bar(number, attempt, begin, end) for number, attempt in enumerate(run.attempts, start=1)]
    marked = [event for event in run.events if event.kind in _MARKED]
    if len(marked) > _MOST_MARKS:
        marked = [event for event in marked if event.kind in ("failure", "recovery")][:_MOST_MARKS]
    marks = [TimeMark(_place(event.time, begin, end), event.kind, shorten(event.text, 200)) for event in marked]
    listed = _chosen(run)
    num_skipped = len(run.events) - len(listed)
    captions = [
        "Bars: attempts. Marks: evaluations below, checkpoints that are kept above, failures and recoveries across."
    ]
    if num_skipped:
        captions.append(f"{num_skipped:,} events are not listed; `ditlab runs log` prints all.")
    timeline = Timeline(
        bars, marks, (_moment(begin), _moment(end)), [_listed(event) for event in listed],
        _alternative(run), " ".join(captions),
    )  # fmt: skip
    return Section("Timeline", [timeline], "timeline")


def _training_seconds(run: RunContent) -> float:
    """Seconds of all attempts."""
    return sum(max(0, attempt.end - attempt.begin) for attempt in run.attempts) / 1000


def _bar(number: int, attempt: RunAttempt, begin: int, end: int) -> TimeBar:
    left, right = _place(attempt.begin, begin, end), _place(attempt.end, begin, end)
    text = _attempt_text(number, attempt.begin, attempt.end, attempt.status)
    return TimeBar(left, max(right - left, 0.0), attempt.status, text)


def _alternative(run: RunContent) -> str:
    parts = [_attempt_text(number, attempt.begin, attempt.end, attempt.status)
             for number, attempt in enumerate(run.attempts[:20], start=1)]  # fmt: skip
    num_failures = sum(event.kind == "failure" for event in run.events)
    num_recoveries = sum(event.kind == "recovery" for event in run.events)
    parts.append(
        f"{num_failures} failures, {num_recoveries} recoveries, {_num_bad_steps(run)} steps with NaN or infinity"
    )
    return f"{len(run.attempts)} attempts: {'; '.join(parts)}."


def _attempt_text(number: int, begin: int, end: int, status: str) -> str:
    return f"attempt {number} from {_moment(begin)}, {format_duration((end - begin) / 1000)}, {status}"


def _chosen(run: RunContent) -> Sequence[RunEvent]:
    """Events that are listed: the newest, those of failures and attempts before all others."""
    by_worth = sorted(run.events, key=lambda event: (event.kind in _LISTED, event.time))
    return sorted(by_worth[-_MOST_EVENTS:], key=lambda event: event.time)


def _listed(event: RunEvent) -> TimeEvent:
    iso = datetime.fromtimestamp(event.time / 1000, UTC).isoformat(timespec="seconds")
    return TimeEvent(_moment(event.time), iso, event.kind, shorten(event.text, _MOST_CHARACTERS))


def _place(time: int, begin: int, end: int) -> float:
    return min(max(100 * (time - begin) / (end - begin), 0.0), 100.0)


def _moment(time: int) -> str:
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
