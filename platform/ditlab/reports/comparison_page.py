"""Page of a comparison as HTML and Markdown, with its figures and what each fork among the runs changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path

import numpy as np

from denoisers.figures import Curve, Figure, ImageGrid, Lines, Panel
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
from ditlab.reports.rendering.panels import panel_size
from ditlab.reports.rendering.render import DPI, save_figure

_SIZE = (4.4, 3.0)
"""Inches of a panel of curves."""
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
        figure = curves_figure(comparison, {TRAIN_LOSS: "training loss"})
        parts.append(ImageFile(save_figure(figure, folder / "training-loss.png"), caption))
    if not comparison.common:
        return [*parts, Paragraphs(f"No held-out curves: {comparison.obstacle}.")]
    note = f" Not comparable: {comparison.obstacle}." if comparison.obstacle else ""
    # of a part of a mixture (`NAME/velocity`), the main metric alone: the table has all of them
    shown = [name for name in comparison.common if "/" not in name or name.endswith(f"/{comparison.main}")]
    first, *others = ((f"{HELD_OUT}{name}", f"held-out {name}") for name in shown)
    figure = curves_figure(comparison, dict([first]))
    path = save_figure(figure, folder / f"held-out-{_file_name(comparison.common[0])}.png")
    parts.append(ImageFile(path, f"Held-out {comparison.common[0]} during training.{note}"))
    if others:
        path = save_figure(curves_figure(comparison, dict(others)), folder / "held-out-others.png")
        parts.append(ImageFile(path, f"The other held-out metrics that the runs have in common.{note}"))
    return parts


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


def curves_figure(comparison: Comparison, names: Mapping[str, str]) -> Figure:
    """Draw three panels a metric: over steps, samples and training time; a run has its colour in all of them.

    `names` are titles by metric. Axes are logarithmic where all values are above 0. The training loss is pale, and its
    running median is drawn over it.
    """
    panels, ends = [], []
    for name, title in names.items():
        curves = {place: run.curves[name] for place, run in enumerate(comparison.runs) if name in run.curves}
        last = [f"{comparison.labels[at]} {format_number(float(each.values[-1]))}" for at, each in curves.items()]
        ends.append(f"{title}: {', '.join(last)}")
        panels += [_panel(comparison, curves, axis, title, name == TRAIN_LOSS) for axis in AXES]
    first = replace(panels[0], curves=[
        replace(curve, label="" if curve.weight == "faint" else comparison.labels[curve.colour or 0])
        for curve in panels[0].curves
    ])  # fmt: skip
    about = "Curves over steps, samples seen and training time, a colour a run"
    return Figure([first, *panels[1:]], columns=3, alt=f"{about}. Last values of {'; '.join(ends)}.")


def _panel(
    comparison: Comparison, curves: Mapping[int, RunCurve], axis: CurveAxis, title: str, is_noisy: bool
) -> Lines:
    scale, label = 1.0, {"steps": "steps", "samples": "samples seen", "seconds": "training time"}[axis]
    ends = [curve.along(axis)[-1] for curve in curves.values() if np.isfinite(curve.along(axis)).any()]
    if not ends:
        return Lines([], "", f"{label}: not known", title if axis == "steps" else "", size=_SIZE)
    if axis == "seconds":
        longest = float(np.nanmax(ends))
        scale, unit = next((scale, unit) for least, scale, unit in _UNITS if longest >= least)
        label = f"{label} in {unit}"
    drawn = []
    for place, curve in curves.items():
        if is_noisy:
            drawn.append(Curve(curve.along(axis) / scale, curve.values, colour=place, weight="faint"))
        shown = smoothed(curve) if is_noisy else curve
        drawn.append(Curve(shown.along(axis) / scale, shown.values, colour=place, marked=not is_noisy))
    values = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves.values()])
    is_positive = len(values) > 0 and bool((values > 0).all())
    return Lines(drawn, "", label, title if axis == "steps" else "", log_y=is_positive, size=_SIZE)


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
