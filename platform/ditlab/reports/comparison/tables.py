"""The tables of a comparison: a column a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ditlab.reports.comparison.curves import AXES, PAUSE_STEPS, WINDOWS, smoothed
from ditlab.reports.comparison.records import HELD_OUT, TRAIN_LOSS, ComparedRun, Comparison, Drawing
from ditlab.reports.comparison.summary import amount, lowest
from ditlab.reports.formatting import Cell, cell, duration
from ditlab.reports.page import Table, Text

PLACES = ("name", "tracking.", "checkpoint.storage")
"""Paths of a spec that say where a run ran or what it is called."""

Value = Callable[[ComparedRun], Cell]


def _across(comparison: Comparison, rows: Sequence[tuple[str, Value]], caption: str) -> Table:
    """A column a run, a row a property; rows that no run has are left out."""
    cells = [[name, *(cell(value(run)) for run in comparison.runs)] for name, value in rows]
    return Table(["", *comparison.labels], [row for row in cells if any(row[1:])], caption)


def runs_tables(comparison: Comparison) -> list[Table]:
    """What each run is and what it took; and the last value of its metrics."""
    rows: list[tuple[str, Value]] = [
        ("run", lambda run: run.run_id),
        ("name", lambda run: run.name),
        ("family", lambda run: run.family),
        ("status", lambda run: run.status),
        ("step", lambda run: run.step),
        ("samples seen", lambda run: run.samples),
        ("training time", lambda run: None if run.seconds is None else duration(run.seconds)),
        ("samples/s (median)", lambda run: run.samples_per_second),
        ("parameters", lambda run: run.parameters),
    ]
    time_note = (
        "Training time is the sum of the intervals between training metrics in each run's journal, on the machine that "
        "it ran on. An interval that holds an evaluation or a resume, or one longer than a minute and than "
        f"{PAUSE_STEPS} median steps, counts as the median step."
    )
    loss_note = f"The training loss is the median over the last {100 // WINDOWS}% of the steps."
    metrics = _metric_rows(comparison)
    last = [Table(["last value", *comparison.labels], metrics, loss_note)] if metrics else []
    return [_across(comparison, rows, time_note), *last]


def _metric_rows(comparison: Comparison) -> list[list[Cell]]:
    """The training loss, the common held-out metrics and then those of some runs alone."""
    known = {name for run in comparison.runs for name in run.tracks}
    common = [TRAIN_LOSS, *(f"{HELD_OUT}{name}" for name in comparison.common)]
    names = [name for name in common if name in known] + sorted(known - set(common))
    return [[name, *(_last(run, name) for run in comparison.runs)] for name in names]


def _last(run: ComparedRun, name: str) -> float | None:
    if name not in run.tracks:
        return None
    track = smoothed(run.tracks[name]) if name == TRAIN_LOSS else run.tracks[name]
    return float(track.values[-1])


def spec_table(comparison: Comparison) -> Table | Text:
    paths = dict.fromkeys(path for run in comparison.runs for path in run.spec if not path.startswith(PLACES))
    rows = [[path, *(run.spec.get(path) for run in comparison.runs)] for path in paths]
    different = [row for row in rows if len(set(row[1:])) > 1]
    if not different:
        return Text("The specs differ in nothing but names and places.")
    return Table(
        ["path", *comparison.labels],
        different,
        "Paths that differ; an empty cell is a path that the run does not have. Left out: its name, and where it was "
        "tracked and stored.",
    )


def component_table(comparison: Comparison) -> Table:
    names = dict.fromkeys(name for run in comparison.runs for name in run.components)
    rows: list[list[Cell]] = [[name, *(run.components.get(name) for run in comparison.runs)] for name in names]
    rows.append(["total", *(run.parameters for run in comparison.runs)])
    only = dict.fromkeys(name for run in comparison.runs for name in run.training_only)
    rows += [
        [f"{name} (training only, not in the total)", *(run.training_only.get(name) for run in comparison.runs)]
        for name in only
    ]
    return Table(["component", *comparison.labels], rows)


def budget_parts(comparison: Comparison) -> list[Table | Text]:
    """The main held-out metric where all runs have spent the same, or why there is none."""
    if comparison.obstacle or comparison.main is None:
        return [Text(f"Held-out metrics are not compared: {comparison.obstacle}.")]
    if not comparison.budgets:
        return [Text("The runs were evaluated at no common step beyond their start.")]
    rows: list[list[Cell]] = [
        [_AXIS[budget.axis], amount(budget), *budget.values, lowest(comparison, budget)]
        for budget in comparison.budgets
    ]
    notes = [
        f"Held-out {comparison.main} (lower is better) at the most that all runs have in common, interpolated linearly "
        "between evaluations.",
        *(["Training time is not known for all runs."] if len(rows) < len(AXES) else []),
        *([_UNEVEN] if _is_uneven(comparison) else []),
        "One training run each: what another seed would give is not in these numbers.",
    ]
    columns = ["equal", "largest common", *(comparison.label(run) for run in comparison.evaluated), "lowest"]
    return [Table(columns, rows, " ".join(notes))]


_AXIS = {"steps": "steps", "samples": "samples", "seconds": "training time"}
_UNEVEN = (
    "A run that goes on well beyond one of these points is met there in the middle of its learning-rate schedule, "
    "which counts against it."
)


def _is_uneven(comparison: Comparison) -> bool:
    """Whether a run whose learning rate falls was trained more than a tenth beyond a common budget."""
    falling = [run for run in comparison.evaluated if run.spec.get("schedule.kind") != "constant"]
    tracks = [run.held_out[str(comparison.main)] for run in falling]
    return any(track.along(budget.axis)[-1] > 1.1 * budget.amount for track in tracks for budget in comparison.budgets)


_READING = (
    "Lower is better for frechet and kernel; nearest well below nearest_held_out would mean copies of training samples."
)
_READING_AGREEMENT = (
    " Higher is better for agreement, the share of samples that show what their captions say: agreement_real is that "
    "of real images, agreement_chance that of chance."
)


def quality_parts(comparison: Comparison) -> list[Table | Text]:
    """How samples were drawn, at what cost, and how good they are; empty where none were drawn."""
    drawings = [run.drawing for run in comparison.runs if run.drawing is not None]
    if not drawings:
        return []

    def of(pick: Callable[[Drawing], Cell]) -> Value:
        return lambda run: None if run.drawing is None else pick(run.drawing)

    rows: list[tuple[str, Value]] = [
        ("weights of step", of(lambda drawing: drawing.step)),
        ("samples", of(lambda drawing: drawing.num)),
        ("sampling", of(lambda drawing: drawing.settings)),
        ("network evaluations a sample", of(lambda drawing: drawing.evaluations)),
        ("seconds a sample", of(lambda drawing: drawing.seconds)),
    ]
    names = list(dict.fromkeys(name for drawing in drawings for name in drawing.quality))
    rows += [(name, of(partial(_quality_of, name))) for name in names]
    note = f" Quality is measured {comparison.quality_note}. {_READING}" if names else ""
    note += _READING_AGREEMENT if "quality/agreement" in names else ""
    caption = (
        f"Each run with its own sampling settings, all with seed {comparison.seed}, {comparison.batch} samples at once "
        f"on {comparison.device}.{note}"
    )
    parts: list[Table | Text] = [_across(comparison, rows, caption)]
    measured = [run for run in comparison.runs if run.drawing is not None and run.drawing.quality]
    if len({run.data for run in measured}) > 1:
        parts.append(Text("The runs differ in their data, and each is measured against its own: do not compare these."))
    without = [run for run in comparison.runs if run.drawing is not None and run.drawing.no_quality]
    if without:
        reasons = [f"{comparison.label(run)}: {run.drawing.no_quality}." for run in without if run.drawing is not None]
        parts.append(Text("No quality metrics. " + " ".join(reasons)))
    return parts


def _quality_of(name: str, drawing: Drawing) -> float | None:
    return drawing.quality.get(name)
