"""Report of a sweep: one page as HTML and Markdown, with its figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure as Canvas

from ditlab.reports.formatting import Cell, describe_value, format_duration, format_number, short_names, shorten
from ditlab.reports.page import Page, write_html, write_markdown
from ditlab.reports.parts import Code, ImageFile, Paragraphs, Section, Table
from ditlab.reports.rendering.render import save_canvas
from ditlab.reports.sweeps.alternatives import about_curves, about_effects, about_objective, about_parallel
from ditlab.reports.sweeps.axes import plot_axis
from ditlab.reports.sweeps.effects import EFFECTS_CAPTION, draw_effects
from ditlab.reports.sweeps.figures import CURVES_CAPTION, draw_learning_curves, draw_objective, objective_caption
from ditlab.reports.sweeps.importance import METHOD, Importance, importance
from ditlab.reports.sweeps.parallel_coordinates import PARALLEL_CAPTION, draw_parallel_coordinates
from ditlab.reports.sweeps.ranking import best, pareto, rank
from ditlab.reports.sweeps.records import AxisInfo, SweepSummary, Trial
from ditlab.reports.sweeps.summary import better, counts, is_done, summary_text

_NOTE_CHARACTERS = 600
_VALUE_CHARACTERS = 120
_NAMES = 12
"""Most categories listed of an axis."""
_WEAK = 0.3
"""R^2 below which importances are only a hint."""
_NO_PICTURE = "There is nothing to draw: no trial has a value yet."

Part = Table | ImageFile | Paragraphs | Code
MakePicture = Callable[[str, Canvas | None, str, str], Part]
"""Writes a figure, if there is one, under this file name with this alternative text, and returns the part of the page
for it, with this caption."""


def write_sweep_report(summary: SweepSummary, folder: Path, best_spec: str, resume_command: str) -> list[Path]:
    """Write `report.html`, `report.md` and their pictures into `folder`; return the files in this order.

    `best_spec` is the YAML of `best(summary)`, empty where there is none; `resume_command` resumes the sweep. Empty
    pictures are left out, which the page mentions. Files are replaced atomically, the pages last. Raises OSError where
    the disk refuses.
    """
    shares = importance(summary)
    pictures: list[Path] = []

    def picture(name: str, canvas: Canvas | None, about: str, caption: str) -> Part:
        if canvas is None:
            (folder / name).unlink(missing_ok=True)  # an earlier report's would not belong to this page
            return Paragraphs(_NO_PICTURE)
        pictures.append(save_canvas(canvas, folder / name, about))
        return ImageFile(pictures[-1], caption)

    sections = [
        _ranking(summary),
        *_best_spec(summary, best_spec),
        _what_mattered(summary, shares, picture),
        Section(
            "All trials at once",
            [
                picture(
                    "parallel-coordinates.png",
                    draw_parallel_coordinates(summary),
                    about_parallel(summary),
                    PARALLEL_CAPTION,
                )
            ],
        ),
        Section(
            "Progress",
            [picture("objective.png", draw_objective(summary), about_objective(summary), objective_caption(summary))],
        ),
        Section(
            "Learning curves",
            [picture("curves.png", draw_learning_curves(summary), about_curves(summary), CURVES_CAPTION)],
        ),
        *_notes(summary),
        _how(summary, resume_command),
    ]
    page = Page(f"Sweep: {summary.name}", summary_text(summary, shares.shares), sections)
    return [write_html(page, folder / "report.html"), write_markdown(page, folder / "report.md"), *pictures]


def _names(summary: SweepSummary) -> dict[str, str]:
    """Short names of the axes for the heads of tables."""
    taken = ("trial", "run", "status", "step", "time", "Pareto", *summary.metrics)
    return short_names((axis.path for axis in summary.axes), taken)


def _ranking(summary: SweepSummary) -> Section:
    names, front = _names(summary), {trial.number for trial in pareto(summary)}
    trade_off = len(summary.metrics) > 1
    columns = ["trial", "run", "status", "step", *summary.metrics, *(["Pareto"] if trade_off else [])]
    rows: list[list[Cell]] = []
    for trial in rank(summary):
        row: list[Cell] = [trial.number, trial.run_id, trial.status, trial.step]
        row += [trial.metrics.get(name) for name in summary.metrics]
        row += ["yes" if trial.number in front else None] if trade_off else []
        row += [_value(trial, axis.path) for axis in summary.axes]
        rows.append([*row, format_duration(trial.seconds) if trial.seconds else None])
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
        else shorten(describe_value(value), _VALUE_CHARACTERS)
    )


def _best_spec(summary: SweepSummary, best_spec: str) -> list[Section]:
    first = best(summary)
    if first is None or not best_spec.strip():
        return []
    state = "" if first.status == "finished" else f", which is {first.status} at step {first.step:,}"
    text = f"The whole spec of trial {first.number}{state}. Saved as best.yaml, it is trained again with:"
    return [
        Section("The best spec", [Paragraphs(text), Code("ditlab train best.yaml", "shell"), Code(best_spec, "yaml")])
    ]


def _what_mattered(summary: SweepSummary, shares: Importance, picture: MakePicture) -> Section:
    parts: list[Part] = []
    if shares.shares:
        assert shares.explained is not None
        ordered = sorted(shares.shares.items(), key=lambda item: -item[1])
        rows: list[list[Cell]] = [[path, round(100 * share)] for path, share in ordered]
        text = f"With {shares.num_trials} trials the forest explains {100 * shares.explained:.0f} % of the variance of "
        text += "trials that it was not fitted on."
        if shares.explained < _WEAK:
            text += " That is little: take the shares as a hint."
        parts += [Paragraphs(text), Table(["axis", "importance, %"], rows, METHOD)]
    else:
        parts.append(Paragraphs(f"No importance is given. {shares.reason}"))
    parts.append(picture("effects.png", draw_effects(summary, shares), about_effects(summary, shares), EFFECTS_CAPTION))
    return Section("What mattered", parts)


def _notes(summary: SweepSummary) -> list[Section]:
    failed = [trial for trial in summary.trials if trial.status == "failed"]
    others = [trial for trial in summary.trials if trial.status != "failed" and trial.note]
    population = "pbt" in summary.scheduler.lower() or "population" in summary.scheduler.lower()
    sections = [("Failed trials", "why", failed), ("Takeovers" if population else "Notes", "note", others)]
    return [
        Section(title, [Table(["trial", "run", "step", name], [_note(trial) for trial in trials])])
        for title, name, trials in sections
        if trials
    ]


def _note(trial: Trial) -> list[Cell]:
    text = shorten(" ".join(trial.note.split()), _NOTE_CHARACTERS)
    return [trial.number, trial.run_id, trial.step, text or "no reason was recorded"]


def _how(summary: SweepSummary, resume_command: str) -> Section:
    metrics = ", ".join(f"{name} ({better(mode)})" for name, mode in zip(summary.metrics, summary.modes, strict=True))
    elapsed, summed = (
        format_duration(seconds) for seconds in (summary.seconds, sum(trial.seconds for trial in summary.trials))
    )
    rows = [
        ["sweep", summary.sweep_id],
        ["base", summary.base],
        ["metric" if len(summary.metrics) == 1 else "metrics", metrics],
        ["search", summary.search],
        ["scheduler", summary.scheduler],
        ["trials", f"{len(summary.trials)} of {summary.total_trials}: {counts(summary)}"],
        [
            "time",
            f"{elapsed}; {summed} summed over trials",
        ],
    ]
    parts: list[Part] = [Table(["", ""], rows)]
    if summary.axes:
        parts.append(Table(["axis", "in the ranking", "scale", "tried"], [_axis(summary, a) for a in summary.axes]))
    if not is_done(summary):
        parts += [Paragraphs("Resume the sweep with:"), Code(resume_command, "shell")]
    return Section("How the sweep was run", parts)


def _axis(summary: SweepSummary, axis: AxisInfo) -> list[Cell]:
    tried = plot_axis(axis, [trial for trial in summary.trials if trial.status != "waiting"])
    if not tried.raw:
        values = ""
    elif tried.scale == "category":
        names = ", ".join(tried.names[:_NAMES])
        values = f"{names} and {len(tried.names) - _NAMES} more" if len(tried.names) > _NAMES else names
    else:
        ends = [math.exp(end) if tried.scale == "log" else end for end in (tried.low, tried.high)]
        values = " to ".join(dict.fromkeys(format_number(end) for end in ends))
    return [axis.path, _names(summary)[axis.path], axis.scale, values]
