"""The report of a sweep: one page as HTML and Markdown, and its pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from ditlab.reports.formatting import Cell, duration, number, short_names, shorten, value_text
from ditlab.reports.page import Code, Page, Picture, Section, Table, Text, write_html, write_markdown
from ditlab.reports.rendering.render import save_canvas
from ditlab.reports.sweeps.axes import column
from ditlab.reports.sweeps.effects import EFFECTS_CAPTION, effects
from ditlab.reports.sweeps.figures import CURVES_CAPTION, learning_curves, objective, objective_caption
from ditlab.reports.sweeps.importance import METHOD, Importance, importance
from ditlab.reports.sweeps.parallel_coordinates import PARALLEL_CAPTION, parallel_coordinates
from ditlab.reports.sweeps.ranking import AxisInfo, Summary, Trial, best, pareto, rank
from ditlab.reports.sweeps.summary import better, counts, is_done, lead

_NOTE_CHARACTERS = 600
_VALUE_CHARACTERS = 120
_NAMES = 12
"""Categories listed of an axis."""
_WEAK = 0.3
"""R^2 below which importances are a hint at most."""
_NO_PICTURE = "There is nothing to draw: no trial has a value yet."

Part = Table | Picture | Text | Code


def write_sweep_report(summary: Summary, folder: Path, best_spec: str, resume_command: str) -> list[Path]:
    """Write `report.html`, `report.md` and the pictures that they show into `folder`; return them in this order.

    `best_spec` is the YAML of `best(summary)`, empty where there is none; `resume_command` goes on with the sweep. A
    picture that would show nothing is left out, and the page says so. Files appear whole or not at all, the pages
    last. Raises OSError where the disk refuses.
    """
    shares = importance(summary)
    pictures: list[Path] = []

    def picture(name: str, canvas: Canvas | None, caption: str) -> Part:
        if canvas is None:
            (folder / name).unlink(missing_ok=True)  # an earlier report's would not belong to this page
            return Text(_NO_PICTURE)
        pictures.append(save_canvas(canvas, folder / name))
        return Picture(pictures[-1], caption)

    sections = [
        _ranking(summary),
        *_best_spec(summary, best_spec),
        _what_mattered(summary, shares, picture),
        Section(
            "All trials at once", [picture("parallel-coordinates.png", parallel_coordinates(summary), PARALLEL_CAPTION)]
        ),
        Section("Progress", [picture("objective.png", objective(summary), objective_caption(summary))]),
        Section("Learning curves", [picture("curves.png", learning_curves(summary), CURVES_CAPTION)]),
        *_notes(summary),
        _how(summary, resume_command),
    ]
    page = Page(f"Sweep: {summary.name}", lead(summary, shares.shares), sections)
    return [write_html(page, folder / "report.html"), write_markdown(page, folder / "report.md"), *pictures]


def _names(summary: Summary) -> dict[str, str]:
    """Of the axes, short enough for a table's head."""
    taken = ("trial", "run", "status", "step", "time", "Pareto", *summary.metrics)
    return short_names((axis.path for axis in summary.axes), taken)


def _ranking(summary: Summary) -> Section:
    names, front = _names(summary), {trial.number for trial in pareto(summary)}
    trade_off = len(summary.metrics) > 1
    columns = ["trial", "run", "status", "step", *summary.metrics, *(["Pareto"] if trade_off else [])]
    rows: list[list[Cell]] = []
    for trial in rank(summary):
        row: list[Cell] = [trial.number, trial.run_id, trial.status, trial.step]
        row += [trial.metrics.get(name) for name in summary.metrics]
        row += ["yes" if trial.number in front else None] if trade_off else []
        row += [_value(trial, axis.path) for axis in summary.axes]
        rows.append([*row, duration(trial.seconds) if trial.seconds else None])
    order = f"{summary.metrics[0]} ({better(summary.modes[0])})"
    caption = f"Best first: finished trials, then those stopped early, interrupted and running, each by {order}"
    caption += " inside a front of the non-dominated sorting. " if trade_off else ". "
    totals = sorted({trial.total_steps for trial in summary.trials})
    caption += f"A whole trial has {totals[0]:,} steps. " if len(totals) == 1 else ""
    caption += "An empty cell: not used, or not known."
    return Section("Ranking", [Table([*columns, *names.values(), "time"], rows, caption)])


def _value(trial: Trial, path: str) -> Cell:
    if path not in trial.values:
        return None
    value = trial.values[path]
    return (
        value
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else shorten(value_text(value), _VALUE_CHARACTERS)
    )


def _best_spec(summary: Summary, best_spec: str) -> list[Section]:
    first = best(summary)
    if first is None or not best_spec.strip():
        return []
    state = "" if first.status == "finished" else f", which is {first.status} at step {first.step:,}"
    text = f"The whole spec of trial {first.number}{state}. Saved as best.yaml, it is trained again with:"
    return [Section("The best spec", [Text(text), Code("ditlab train best.yaml", "shell"), Code(best_spec, "yaml")])]


def _what_mattered(summary: Summary, shares: Importance, picture: Callable[[str, Canvas | None, str], Part]) -> Section:
    parts: list[Part] = []
    if shares.shares:
        assert shares.explained is not None
        ordered = sorted(shares.shares.items(), key=lambda item: -item[1])
        rows: list[list[Cell]] = [[path, round(100 * share)] for path, share in ordered]
        told = f"With {shares.num_trials} trials the forest explains {100 * shares.explained:.0f} % of the variance of "
        told += "trials that it was not fitted on."
        if shares.explained < _WEAK:
            told += " That is little: take the shares as a hint."
        parts += [Text(told), Table(["axis", "importance, %"], rows, METHOD)]
    else:
        parts.append(Text(f"No importance is given. {shares.reason}"))
    parts.append(picture("effects.png", effects(summary, shares), EFFECTS_CAPTION))
    return Section("What mattered", parts)


def _notes(summary: Summary) -> list[Section]:
    failed = [trial for trial in summary.trials if trial.status == "failed"]
    others = [trial for trial in summary.trials if trial.status != "failed" and trial.note]
    population = "pbt" in summary.scheduler.lower() or "population" in summary.scheduler.lower()
    sections = [("Failed trials", "why", failed), ("Hand-overs" if population else "Notes", "note", others)]
    return [
        Section(title, [Table(["trial", "run", "step", name], [_note(trial) for trial in trials])])
        for title, name, trials in sections
        if trials
    ]


def _note(trial: Trial) -> list[Cell]:
    text = shorten(" ".join(trial.note.split()), _NOTE_CHARACTERS)
    return [trial.number, trial.run_id, trial.step, text or "no reason was recorded"]


def _how(summary: Summary, resume_command: str) -> Section:
    metrics = ", ".join(f"{name} ({better(mode)})" for name, mode in zip(summary.metrics, summary.modes, strict=True))
    rows = [
        ["sweep", summary.sweep_id],
        ["base", summary.base],
        ["metric" if len(summary.metrics) == 1 else "metrics", metrics],
        ["search", summary.search],
        ["scheduler", summary.scheduler],
        ["trials", f"{len(summary.trials)} of {summary.total_trials}: {counts(summary)}"],
        ["time", f"{duration(summary.seconds)}; {duration(sum(t.seconds for t in summary.trials))} summed over trials"],
    ]
    parts: list[Part] = [Table(["", ""], rows)]
    if summary.axes:
        parts.append(Table(["axis", "in the ranking", "scale", "tried"], [_axis(summary, a) for a in summary.axes]))
    if not is_done(summary):
        parts += [Text("The sweep goes on with:"), Code(resume_command, "shell")]
    return Section("How the sweep was run", parts)


def _axis(summary: Summary, axis: AxisInfo) -> list[Cell]:
    tried = column(axis, [trial for trial in summary.trials if trial.status != "waiting"])
    if not tried.raw:
        values = ""
    elif tried.scale == "category":
        names = ", ".join(tried.names[:_NAMES])
        values = f"{names} and {len(tried.names) - _NAMES} more" if len(tried.names) > _NAMES else names
    else:
        ends = [math.exp(end) if tried.scale == "log" else end for end in (tried.low, tried.high)]
        values = " to ".join(dict.fromkeys(number(end) for end in ends))
    return [axis.path, _names(summary)[axis.path], axis.scale, values]
