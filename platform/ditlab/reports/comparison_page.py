"""Page of a comparison as HTML and Markdown, with its figures and what each fork among the runs changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, MaxNLocator

from denoisers.figures import Figure, ImageGrid, Panel
from ditlab.reports.comparison_records import (
    AXES,
    HELD_OUT,
    TRAIN_LOSS,
    WINDOWS,
    ComparedRun,
    Comparison,
    CurveAxis,
    RunCurve,
    smoothed,
)
from ditlab.reports.comparison_summary import (
    PLACE_PATHS,
    budget_parts,
    component_table,
    fork_sentence,
    quality_parts,
    runs_tables,
    spec_table,
    summary_text,
)
from ditlab.reports.formatting import Cell, format_number
from ditlab.reports.page import Page, write_html, write_markdown
from ditlab.reports.parts import ImageFile, Paragraphs, Section, Table
from ditlab.reports.rendering.charts import set_log_ticks
from ditlab.reports.rendering.panels import COLOURS, panel_size
from ditlab.reports.rendering.render import DPI, save_canvas, save_figure
from ditlab.reports.rendering.theme import LABEL_POINTS, LIGHT, NAME_CHARACTERS, TICK_POINTS, light_grid, one_line

_WIDTH, _ROW_HEIGHT, _ROW_HEIGHT_OF_MANY = 13.0, 3.3, 2.5  # inches
_RAW_POINTS = 5000
_SIDE_BY_SIDE_INCHES = 15.0
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""(smallest duration in seconds, seconds a unit, the unit's name)."""
_TAKEN = {
    "all": "It took over all of its state.",
    "averaged": "It took over its averaged weights.",
    "trained": "It took over its trained weights.",
}
_COUNTING = (
    "A fork with all of its parent's state counts steps and samples from the first ancestor's first step; its training "
    "time is its own alone."
)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.html`, `comparison.md` and their pictures into `folder`; return all files, the page first.

    Raises OSError where the disk refuses.
    """
    curves = _curves(comparison, folder)
    samples, pictures = _samples(comparison, folder)
    sections = [
        Section("Runs", runs_tables(comparison)),
        Section("Forks", fork_parts(comparison)),
        Section("Differences of the specs", [spec_table(comparison)]),
        Section("Parameters by component", [component_table(comparison)]),
        Section("Loss curves", curves),
        Section("Equal budgets", budget_parts(comparison)),
        Section("Sampling and quality", quality_parts(comparison)),
        Section("Samples", samples),
    ]
    title = " and ".join([", ".join(comparison.labels[:-1]), comparison.labels[-1]])
    page = Page(title, summary_text(comparison), [section for section in sections if section.parts])
    return [
        write_html(page, folder / "comparison.html"),
        write_markdown(page, folder / "comparison.md"),
        *(part.path for part in curves if isinstance(part, ImageFile)),
        *pictures,
    ]


def _curves(comparison: Comparison, folder: Path) -> list[Paragraphs | ImageFile]:
    parts: list[Paragraphs | ImageFile] = []
    without = [comparison.label(run) for run in comparison.runs if TRAIN_LOSS not in run.curves]
    if without:
        parts.append(Paragraphs(f"Without training metrics in the journal: {', '.join(without)}."))
    if len(without) < len(comparison.runs):
        caption = (
            "Training loss over steps, samples seen and training time. Pale: as logged. Strong: running median over "
            f"1/{WINDOWS} of the run's points."
        )
        if not comparison.has_one_objective:
            caption += " The runs' objectives differ: heights of these curves are not comparable."
        row = _row(comparison, TRAIN_LOSS, "training loss", is_noisy=True)
        parts.append(ImageFile(draw_curves([row], comparison.labels, folder / "training-loss.png"), caption))
    if not comparison.common:
        return [*parts, Paragraphs(f"No held-out curves: {comparison.obstacle}.")]
    note = f" Not comparable: {comparison.obstacle}." if comparison.obstacle else ""
    # of a part of a mixture (`NAME/velocity`), the main metric alone: the table has all of them
    shown = [name for name in comparison.common if "/" not in name or name.endswith(f"/{comparison.main}")]
    first, *others = [_row(comparison, f"{HELD_OUT}{name}", f"held-out {name}") for name in shown]
    path = draw_curves([first], comparison.labels, folder / f"held-out-{_file_name(comparison.common[0])}.png")
    parts.append(ImageFile(path, f"Held-out {comparison.common[0]} during training.{note}"))
    if others:
        path = draw_curves(others, comparison.labels, folder / "held-out-others.png")
        parts.append(ImageFile(path, f"The other held-out metrics that the runs have in common.{note}"))
    return parts


def _row(comparison: Comparison, name: str, title: str, is_noisy: bool = False) -> MetricRow:
    curves = {place: run.curves[name] for place, run in enumerate(comparison.runs) if name in run.curves}
    return MetricRow(title, curves, is_noisy)


def _file_name(name: str) -> str:
    """Turn a metric's name into part of a file name."""
    return "".join(character if character.isalnum() or character in "._" else "-" for character in name)


def _samples(comparison: Comparison, folder: Path) -> tuple[list[Paragraphs | ImageFile], list[Path]]:
    """Write a picture a run, and one of all runs where they fit; return the page's parts and all pictures."""
    grids = [(run, run.drawn.grid) for run in comparison.runs if run.drawn and run.drawn.grid]
    reasons = [f"{comparison.label(run)}: {run.why_no_samples}." for run in comparison.runs if run.why_no_samples]
    notes = [Paragraphs("No samples. " + " ".join(reasons))] if reasons else []
    single = [
        ImageFile(save_figure(grid, folder / f"samples-{run.run_id}.png"), comparison.label(run)) for run, grid in grids
    ]
    together = side_by_side([(comparison.label(run), grid) for run, grid in grids])
    files = [picture.path for picture in single]
    if together is None:
        return [*single, *notes], files
    caption = (
        f"Drawn with seed {comparison.seed}: runs of one sample shape begin with the same noise, sample by sample."
    )
    path = save_figure(together, folder / "samples.png")
    return [ImageFile(path, caption), *notes], [path, *files]


@dataclass(frozen=True)
class MetricRow:
    """One metric of several runs."""

    name: str
    curves: Mapping[int, RunCurve]
    """Curves by the index of the run in the comparison, which decides the colour."""
    is_noisy: bool = False
    """True draws the raw curve pale and a smoothed one over it."""


def run_colour(place: int) -> str:
    """Colour of the run with this index, the same in every figure of a page."""
    return COLOURS[place % len(COLOURS)]


def draw_curves(rows: Sequence[MetricRow], labels: Sequence[str], path: Path) -> Path:
    """Draw three panels a row (steps, samples, training time) with one legend on top; write a PNG and return `path`.

    Vertical axes are logarithmic where all of a row's values are above 0.
    """
    height = _ROW_HEIGHT if len(rows) == 1 else _ROW_HEIGHT_OF_MANY
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06)  # inches
    canvas = Canvas(figsize=(_WIDTH, height * len(rows) + 0.6), dpi=DPI, layout=layout, facecolor="white")
    panels = canvas.subplots(len(rows), len(AXES), squeeze=False, sharey="row", sharex="col")
    for column, axis in enumerate(AXES):
        scale, label = _unit(rows, axis)
        for row, axes in zip(rows, panels[:, column], strict=True):
            _draw(row, axis, scale, axes)
        panels[-1, column].set_xlabel(label, fontsize=LABEL_POINTS)
    for row, axes in zip(rows, panels[:, 0], strict=True):
        axes.set_ylabel(row.name, fontsize=LABEL_POINTS, parse_math=False)
    places = sorted({place for row in rows for place in row.curves})
    lines = [panels[0, 0].plot([], [], color=run_colour(place), linewidth=2.5)[0] for place in places]
    legend = canvas.legend(
        lines, [one_line(labels[place], NAME_CHARACTERS) for place in places],
        loc="outside upper center", ncols=min(4, len(places)), fontsize=10.5, frameon=False,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    return save_canvas(canvas, path, _about(rows, labels))


def _about(rows: Sequence[MetricRow], labels: Sequence[str]) -> str:
    """The alternative text: the metrics, and where each run's curve ends."""
    ends = []
    for row in rows:
        last = [f"{labels[place]} {format_number(float(curve.values[-1]))}" for place, curve in row.curves.items()]
        ends.append(f"{row.name}: {', '.join(last)}")
    return f"Curves over steps, samples seen and training time, a colour a run. Last values of {'; '.join(ends)}."


def _draw(row: MetricRow, axis: CurveAxis, scale: float, axes: Axes) -> None:
    for place, curve in row.curves.items():
        colour = run_colour(place)
        if row.is_noisy:
            _plot(axes, _thinned(curve), axis, scale, color=colour, alpha=0.3, linewidth=0.8)
            _plot(axes, smoothed(curve), axis, scale, color=colour, linewidth=1.9)
        else:
            _plot(axes, curve, axis, scale, color=colour, linewidth=1.7, marker="o", markersize=3.5)
    values = np.concatenate([curve.values for curve in row.curves.values()])
    finite = values[np.isfinite(values)]
    if len(finite) and (finite > 0).all():
        axes.set_yscale("log")
        set_log_ticks(axes.yaxis, float(finite.min()), float(finite.max()))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_number(value)))
    axes.tick_params(labelsize=TICK_POINTS)
    light_grid(axes, LIGHT)
    if all(np.isnan(curve.along(axis)).all() for curve in row.curves.values()):
        axes.text(0.5, 0.5, "not known", transform=axes.transAxes, ha="center", color="#777777")


def _plot(axes: Axes, curve: RunCurve, axis: CurveAxis, scale: float, **style: object) -> None:
    # An infinity would stretch the axis without end; it becomes a gap in the line, as NaN does.
    values = np.where(np.isfinite(curve.values), curve.values, np.nan)
    if len(values) == 1:
        style["marker"] = "o"
    axes.plot(curve.along(axis) / scale, values, **style)  # type: ignore[arg-type]


def _thinned(curve: RunCurve) -> RunCurve:
    keep = slice(None, None, max(1, ceil(len(curve.values) / _RAW_POINTS)))
    return RunCurve(curve.steps[keep], curve.samples[keep], curve.seconds[keep], curve.values[keep])


def _unit(rows: Sequence[MetricRow], axis: CurveAxis) -> tuple[float, str]:
    """Return the divisor of the axis' values, and its label."""
    if axis != "seconds":
        return 1.0, {"steps": "steps", "samples": "samples seen"}[axis]
    seconds = np.concatenate([curve.seconds for row in rows for curve in row.curves.values()])
    longest = float(np.nanmax(seconds)) if not np.isnan(seconds).all() else 0.0
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if longest >= least)
    return scale, f"training time in {unit}"


def side_by_side(grids: Sequence[tuple[str, Figure]]) -> Figure | None:
    """Put the samples of two or more runs into one figure, each under its name; None where a figure has several panels.

    Images without captions are arranged in a square, so that more runs fit beside each other.
    """
    if len(grids) < 2 or any(len(figure.panels) != 1 for _, figure in grids):
        return None
    panels = [_square(replace(figure.panels[0], title=label)) for label, figure in grids]
    widest = max(panel_size(panel, DPI).width for panel in panels)
    columns = min(len(panels), max(1, int(_SIDE_BY_SIDE_INCHES / widest)))
    return Figure(panels, columns=ceil(len(panels) / ceil(len(panels) / columns)))


def _square(panel: Panel) -> Panel:
    if isinstance(panel, ImageGrid) and not panel.captions:
        return replace(panel, columns=max(1, ceil(sqrt(len(panel.images)))))
    return panel


def fork_parts(comparison: Comparison) -> list[Table | Paragraphs]:
    """Build a table for each fork: what it changed of its nearest ancestor among the runs; empty without forks."""
    parts: list[Table | Paragraphs] = []
    for run in (each for each in comparison.runs if each.line):
        about = f"{fork_sentence(comparison, run)} {_TAKEN.get(run.spec.get('start.state', ''), '')}".rstrip()
        ancestor = comparison.nearest_ancestor(run)
        if ancestor is None:
            parts.append(Paragraphs(about))
        elif rows := _changes(run, ancestor):
            parts.append(Table(["changed", comparison.label(run), comparison.label(ancestor)], rows, about))
        else:
            parts.append(Paragraphs(f"{about} It changed nothing of the spec."))
    return [*parts, Paragraphs(_COUNTING)] if parts else []


def _changes(run: ComparedRun, ancestor: ComparedRun) -> list[list[Cell]]:
    paths = dict.fromkeys([*run.spec, *ancestor.spec])
    skipped = (*PLACE_PATHS, "start")
    different = [path for path in paths if run.spec.get(path) != ancestor.spec.get(path)]
    return [[path, run.spec.get(path), ancestor.spec.get(path)] for path in different if not path.startswith(skipped)]
