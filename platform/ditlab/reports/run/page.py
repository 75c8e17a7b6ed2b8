"""Page of one run, from its collected content."""

from __future__ import annotations

import numpy as np

from ditlab.reports.formatting import Cell, format_duration, format_number, shorten
from ditlab.reports.page import Page
from ditlab.reports.parts import Code, Fact, Facts, Notice, Paragraphs, Part, Pictures, Section, Slides, Table
from ditlab.reports.run.curves import curves_section, median_speed, num_bad_steps, quality_section, speed_section
from ditlab.reports.run.records import HELD_OUT, TRAIN_LOSS, RunContent
from ditlab.reports.run.timeline import timeline_section, training_seconds

_MOST_ROWS = 500
_MOST_TITLE = 120
_MOST_TEXT = 200_000
_MOST_NOTES = 30
_TEXT = 4000
"""Most characters of a value in a table."""


def run_page(run: RunContent) -> Page:
    """The page of a run; parts that it has nothing for are left out or say so."""
    sections = [
        _result(run), curves_section(run), _samples(run), quality_section(run), _figures(run), speed_section(run),
        timeline_section(run), _spec(run), _parameters(run), _data(run), _commands(run), _software(run),
    ]  # fmt: skip
    progress = run.step / run.total_steps if run.is_live and run.total_steps else None
    title = f"{shorten(run.name, _MOST_TITLE)} ({run.run_id})"
    status = "running" if run.is_live else run.status
    kept = [section for section in sections if section and (section.parts or section.folded)]
    return Page(title, _summary(run), kept, status, None if progress is None else min(progress, 1.0))


def _summary(run: RunContent) -> str:
    total = run.parameters.get("total")
    size = f", {total:,} parameters" if total else ""
    data = f" on {shorten(run.data.name, _MOST_TITLE)}" if run.data else ""
    ends = {"finished": "finished", "failed": "failed", "interrupted": "was interrupted", "stopped": "was stopped"}
    if run.is_live:
        state = "is training"
    elif run.status == "running":
        state = "has no end in its record"
    else:
        state = ends.get(run.status, run.status)
    seconds = training_seconds(run)
    time = f" in {format_duration(seconds)}" if seconds else ""
    sentences = [f"A {run.family} model{size}{data}: {state} at step {run.step:,} of {run.total_steps:,}{time}."]
    loss = _last(run, TRAIN_LOSS)
    if loss is not None:
        sentences.append(f"Training loss {format_number(loss)}.")
    if main := _main_metric(run):
        values = run.metrics[main].values
        name = main.removeprefix(HELD_OUT)
        first = f", from {format_number(float(values[0]))} at the first evaluation" if len(values) > 1 else ""
        sentences.append(f"Held-out {shorten(name, _MOST_TITLE)} {format_number(float(values[-1]))}{first}.")
    if run.message and not run.is_live:
        sentences.append(f"Reason: {shorten(run.message, _TEXT)}")
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
    facts = [Fact("step", f"{run.step:,}", f"of {run.total_steps:,}")]
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
    if (speed := median_speed(run)) is not None:
        facts.append(Fact("samples/s", format_number(speed), "median"))
    if seconds := training_seconds(run):
        num = len(run.attempts)
        facts.append(Fact("time", format_duration(seconds), f"in {num} attempts" if num > 1 else ""))
    if total := run.parameters.get("total"):
        facts.append(Fact("parameters", f"{total:,}"))
    if run.checkpoints:
        facts.append(Fact("checkpoint", f"step {run.checkpoints[-1]:,}", f"{len(run.checkpoints)} kept here"))
    if bad := num_bad_steps(run):
        facts.append(Fact("steps with NaN or infinity", f"{bad:,}"))
    notes: list[Part] = [Notice(shorten(note, _TEXT)) for note in run.notes[:_MOST_NOTES]]
    return Section("Result", [Facts(facts), *notes], "result")


def _samples(run: RunContent) -> Section | None:
    parts: list[Part] = []
    for number, series in enumerate(run.samples):
        title = f"{shorten(series.key, _MOST_TITLE).capitalize()} by step"
        parts.append(Slides(f"samples-{number}", series.slides, title))
        if series.caption:
            parts.append(Paragraphs(series.caption))
    return Section("Samples", parts or [Paragraphs("The run has drawn no samples yet, or draws none.")], "samples")


def _figures(run: RunContent) -> Section | None:
    return Section("Figures", [Pictures(run.figures)], "figures") if run.figures else None


def _spec(run: RunContent) -> Section:
    parts: list[Part] = []
    for changes in run.changes:
        rows: list[list[Cell]] = [[path, _cell(own), _cell(other)] for path, own, other in changes.rows[:_MOST_ROWS]]
        if rows:
            parts.append(Table(list(changes.columns), rows, f"Differences against {changes.against}."))
        else:
            parts.append(Paragraphs(f"No difference against {changes.against}."))
    text = run.spec[:_MOST_TEXT] + ("\n# shortened here\n" if len(run.spec) > _MOST_TEXT else "")
    folded: list[tuple[str, list[Part]]] = [("The whole spec", [Code(text, "yaml")])] if text else []
    return Section("Spec", parts, "spec", folded)


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
    if run.data is None:
        return None
    data = run.data
    rows: list[list[Cell]] = [
        ["name", _cell(data.name)],
        ["source", _cell(data.source)],
        ["fingerprint", data.fingerprint],
    ]
    rows += [[name.replace("_", " "), f"{number:,}"] for name, number in list(data.counts.items())[:_MOST_ROWS]]
    if run.batch_size and (train := data.counts.get("train")):
        epochs = f" ({format_number(run.step * run.batch_size / train)} epochs)" if data.source != "mixture" else ""
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
