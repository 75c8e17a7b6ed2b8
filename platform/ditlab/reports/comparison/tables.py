"""Tables of a comparison, with a column for each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ditlab.reports.comparison.curves import AXES, PAUSE_STEPS, WINDOWS, smoothed
from ditlab.reports.comparison.records import HELD_OUT, TRAIN_LOSS, ComparedRun, Comparison, RunSamples
from ditlab.reports.comparison.summary import amount, lowest
from ditlab.reports.formatting import Cell, format_cell, format_duration
from ditlab.reports.parts import Paragraphs, Table

PLACE_PATHS = ("name", "tracking.", "checkpoint.storage")
"""Spec paths of a run's name and of where it was tracked and stored."""

MEASUREMENT = "measurement"
MEASUREMENT_NOTE = "Figures of one name are the same measurement where the row `measurement` is equal."

Value = Callable[[ComparedRun], Cell]


def _across(comparison: Comparison, rows: Sequence[tuple[str, Value]], caption: str) -> Table:
    """Build a table with a column a run and a row a property, without rows that are empty for all runs."""
    cells = [[name, *(format_cell(value(run)) for run in comparison.runs)] for name, value in rows]
    return Table(["", *comparison.labels], [row for row in cells if any(row[1:])], caption)


def runs_tables(comparison: Comparison) -> list[Table]:
    """Tables of the runs' properties and cost, and of the last values of their metrics."""
    rows: list[tuple[str, Value]] = [
        ("run", lambda run: run.run_id),
        ("name", lambda run: run.name),
        ("family", lambda run: run.family),
        ("status", lambda run: run.status),
        ("step", lambda run: run.step),
        ("samples seen", lambda run: run.samples),
        ("training time", lambda run: None if run.seconds is None else format_duration(run.seconds)),
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
    if any(run.measurement for run in comparison.runs):
        metrics.append([MEASUREMENT, *(run.measurement.shown if run.measurement else None for run in comparison.runs)])
        loss_note += f" {MEASUREMENT_NOTE} {comparison.measured_apart('eval')}".rstrip()
    last = [Table(["last value", *comparison.labels], metrics, loss_note)] if metrics else []
    return [_across(comparison, rows, time_note), *last]


def _metric_rows(comparison: Comparison) -> list[list[Cell]]:
    """Rows of the training loss, the common held-out metrics, then metrics of only some runs."""
    known = {name for run in comparison.runs for name in run.curves}
    common = [TRAIN_LOSS, *(f"{HELD_OUT}{name}" for name in comparison.common)]
    names = [name for name in common if name in known] + sorted(known - set(common))
    return [[name, *(_last(run, name) for run in comparison.runs)] for name in names]


def _last(run: ComparedRun, name: str) -> float | None:
    if name not in run.curves:
        return None
    curve = smoothed(run.curves[name]) if name == TRAIN_LOSS else run.curves[name]
    return float(curve.values[-1])


def spec_table(comparison: Comparison) -> Table | Paragraphs:
    paths = dict.fromkeys(path for run in comparison.runs for path in run.spec if not path.startswith(PLACE_PATHS))
    rows = [[path, *(run.spec.get(path) for run in comparison.runs)] for path in paths]
    different = [row for row in rows if len(set(row[1:])) > 1]
    if not different:
        return Paragraphs("The specs differ in nothing but names and places.")
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


def budget_parts(comparison: Comparison) -> list[Table | Paragraphs]:
    """The main held-out metric at equal budgets, or the reason why there is none."""
    if comparison.obstacle or comparison.main is None:
        return [Paragraphs(f"Held-out metrics are not compared: {comparison.obstacle}.")]
    if not comparison.budgets:
        return [Paragraphs("The runs were evaluated at no common step beyond their start.")]
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
    """True if a run with a decaying learning rate was trained more than 10 % beyond a common budget."""
    falling = [run for run in comparison.evaluated if run.spec.get("schedule.kind") != "constant"]
    curves = [run.held_out[str(comparison.main)] for run in falling]
    return any(curve.along(budget.axis)[-1] > 1.1 * budget.amount for curve in curves for budget in comparison.budgets)


_READING = (
    "Lower is better for frechet and kernel; nearest well below nearest_held_out would mean copies of training samples."
)
_READING_AGREEMENT = (
    " Higher is better for agreement, the share of samples that show what their captions say: agreement_real is that "
    "of real images, agreement_chance that of chance."
)


def quality_parts(comparison: Comparison) -> list[Table | Paragraphs]:
    """Sampling settings, cost and quality of the runs' samples; empty where none were drawn."""
    all_drawn = [run.drawn for run in comparison.runs if run.drawn is not None]
    if not all_drawn:
        return []

    def of(pick: Callable[[RunSamples], Cell]) -> Value:
        return lambda run: None if run.drawn is None else pick(run.drawn)

    rows: list[tuple[str, Value]] = [
        ("weights of step", of(lambda drawn: drawn.step)),
        ("samples", of(lambda drawn: drawn.num)),
        ("sampling", of(lambda drawn: drawn.settings)),
        ("network evaluations a sample", of(lambda drawn: drawn.evaluations)),
        ("seconds a sample", of(lambda drawn: drawn.seconds)),
    ]
    names = list(dict.fromkeys(name for drawn in all_drawn for name in drawn.quality))
    rows += [(name, of(partial(_quality_of, name))) for name in names]
    rows.append((MEASUREMENT, of(lambda drawn: drawn.measurement.shown if drawn.measurement else None)))
    note = f" Quality is measured {comparison.quality_note}. {_READING}" if names else ""
    note += _READING_AGREEMENT if "quality/agreement" in names else ""
    caption = (
        f"Each run with its own sampling settings, all with seed {comparison.seed}, {comparison.batch} samples at once "
        f"on {comparison.device}.{note}"
    )
    parts: list[Table | Paragraphs] = [_across(comparison, rows, caption)]
    if apart := comparison.measured_apart("quality"):
        parts.append(Paragraphs(f"{MEASUREMENT_NOTE} {apart}"))
    measured = [run for run in comparison.runs if run.drawn is not None and run.drawn.quality]
    if len({run.data for run in measured}) > 1:
        parts.append(
            Paragraphs("The runs differ in their data, and each is measured against its own: do not compare these.")
        )
    without = [run for run in comparison.runs if run.drawn is not None and run.drawn.why_no_quality]
    if without:
        reasons = [f"{comparison.label(run)}: {run.drawn.why_no_quality}." for run in without if run.drawn is not None]
        parts.append(Paragraphs("No quality metrics. " + " ".join(reasons)))
    return parts


def _quality_of(name: str, drawn: RunSamples) -> float | None:
    return drawn.quality.get(name)
