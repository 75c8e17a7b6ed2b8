"""Page of a comparison as HTML and Markdown: a summary in sentences, tables with a column a run,
and figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ditlab.intervals import describe_difference, seed_band
from ditlab.reports.formatting import Cell, Cells, format_duration, format_number
from ditlab.reports.page import (
    ImageFile,
    Page,
    Paragraphs,
    Part,
    Section,
    Table,
    write_html,
    write_markdown,
)
from ditlab.reports.rendering.render import save_figure
from ditlab.reports.sweep_differences import far_sentence
from ditlab.tracking.journal import TRAIN_LOSS
from ditlab_addons.compare.comparison import (
    AXES,
    HELD_OUT,
    WINDOWS,
    ComparedRun,
    Comparison,
    CurveAxis,
    EqualBudget,
    smoothed,
)
from ditlab_models.figures import Curve, Figure, Lines

PLACE_PATHS = ("name", "tracking.", "checkpoint.storage")
"""Spec paths of a run's name and of where it was tracked and stored."""
_READING = (
    "Figures of one name are the same measurement where their group's is equal. quality/... is "
    "of drawn samples, where it was measured: `ditlab evaluate RUN --quality NUM` does."
)
_SIZE = (5.2, 3.2)
"""Inches of a panel of curves."""
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""(smallest duration in seconds, seconds a unit, the unit's name)."""
_NOTES = (
    f"The training loss is the median over the last {100 // WINDOWS}% of the steps. Training "
    "time is that of the steps alone, without evaluations, saves and pauses, on the machine "
    "that each run had; of a fork without its parent's. Of a group of seeds: the mean, with "
    "half the 95 % interval of the mean."
)
_BUDGETS = (
    "lower is better, at the most that all runs reach, linear between two evaluations. A run "
    "that goes on well beyond is met there in the middle of its learning-rate schedule, which "
    "counts against it. The difference has its error over held-out draws; of groups over seeds, "
    "together with those of all groups (95 %)."
)
_CURVES = (
    f"Pale: as logged. Strong: running median over 1/{WINDOWS} of the run's points. Heights "
    "compare between runs of one objective alone."
)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.html`, `.md` and pictures into `folder`; return them. Raises OSError where
    that fails.
    """
    runs = comparison.runs
    counts: list[Cells] = [
        *_by_key([run.components for run in runs]),
        ["total", *(run.parameters for run in runs)],
    ]
    curves = _curves(comparison, folder)
    samples = _samples(comparison, folder)
    sections = [
        Section("Runs", runs_tables(comparison)),
        Section("Differences of the specs", [_spec_differences(comparison)]),
        Section("Parameters by component", [Table(["component", *comparison.labels], counts)]),
        Section("Loss curves", curves),
        Section("Equal budgets", [_budgets(comparison)]),
        Section("Samples", samples),
    ]
    page = Page(
        _listed(comparison.labels),
        summary_text(comparison),
        [each for each in sections if each.parts],
    )
    return [
        write_html(page, folder / "comparison.html"),
        write_markdown(page, folder / "comparison.md"),
        *(part.path for part in (*curves, *samples) if isinstance(part, ImageFile)),
    ]


def _spec_differences(comparison: Comparison) -> Part:
    rows = _by_key([run.spec for run in comparison.runs])
    different = [
        row for row in rows if len(set(row[1:])) > 1 and not str(row[0]).startswith(PLACE_PATHS)
    ]
    if not different:
        return Paragraphs("The specs differ in nothing but names and places.")
    caption = "An empty cell is a path that the run does not have. Names and places are not shown."
    return Table(["path", *comparison.labels], different, caption)


def _by_key(mappings: Sequence[Mapping[str, Cell]]) -> list[Cells]:
    """A row for each key, with the value that each mapping has."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return [[key, *(mapping.get(key) for mapping in mappings)] for key in keys]


def _curves(comparison: Comparison, folder: Path) -> list[Part]:
    """Pictures of the training loss, and of the held-out metrics that all runs have."""
    parts: list[Part] = []
    without = [comparison.label(run) for run in comparison.runs if TRAIN_LOSS not in run.curves]
    if without:
        parts.append(Paragraphs(f"Without training metrics in the journal: {', '.join(without)}."))
    if len(without) < len(comparison.runs):
        figure = curves_figure(comparison, [TRAIN_LOSS])
        parts.append(
            ImageFile(
                save_figure(figure, folder / "training-loss.png"), f"Training loss. {_CURVES}"
            )
        )
    if not comparison.common:
        return [*parts, Paragraphs(f"No held-out curves: {comparison.obstacle}.")]
    note = f" Not comparable: {comparison.obstacle}." if comparison.obstacle else ""
    figure = curves_figure(comparison, [f"{HELD_OUT}{name}" for name in comparison.common])
    caption = f"Held-out metrics during training.{note}"
    return [*parts, ImageFile(save_figure(figure, folder / "held-out.png"), caption)]


def curves_figure(comparison: Comparison, names: Sequence[str]) -> Figure:
    """Draw metrics over steps and time, a colour a run; the training loss with its median."""
    panels: list[Lines] = []
    for name in names:
        for axis in AXES:
            labels = comparison.labels if not panels else [""] * len(comparison.runs)
            panels.append(_panel(comparison.runs, labels, name, axis))
    return Figure(panels, columns=len(AXES))


def _panel(runs: Sequence[ComparedRun], labels: Sequence[str], name: str, axis: CurveAxis) -> Lines:
    known = [run.curves[name] for run in runs if name in run.curves]
    scale = 1.0
    label = "steps"
    if axis == "seconds":
        longest = max(
            (curve.seconds[-1] for curve in known if np.isfinite(curve.seconds[-1])), default=0.0
        )
        scale, unit = next((scale, unit) for least, scale, unit in _UNITS if longest >= least)
        label = f"training time in {unit}"
    is_noisy = name == TRAIN_LOSS
    drawn = []
    for colour, (run, run_label) in enumerate(zip(runs, labels, strict=True)):
        curve = run.curves.get(name)
        if curve is None:
            continue
        if is_noisy:
            drawn.append(
                Curve(curve.along(axis) / scale, curve.values, colour=colour, weight="faint")
            )
            curve = smoothed(curve)
        x = curve.along(axis) / scale
        drawn.append(
            Curve(x, curve.values, run_label, _band(run, name), colour=colour, marked=not is_noisy)
        )
    values = np.concatenate([curve.values for curve in known])
    is_positive = bool((values[np.isfinite(values)] > 0).all())
    return Lines(drawn, name if axis == "steps" else "", label, log_y=is_positive, size=_SIZE)


def _band(run: ComparedRun, name: str) -> np.ndarray | None:
    """Half the 95 % interval over seeds at each point of a group's mean curve; None for one run or
    a noisy curve.
    """
    if not run.members or name == TRAIN_LOSS:
        return None
    members = [each.curves[name] for each in run.members]
    steps = run.curves[name].steps
    band = seed_band([each.values[np.searchsorted(each.steps, steps)] for each in members])
    return np.asarray((band.high - band.low) / 2)


def _samples(comparison: Comparison, folder: Path) -> list[Part]:
    """Write a picture a run, and say how it was drawn."""
    rows = _rows([*map(_drawing, comparison.runs)])
    parts: list[Part] = [Table(["", *comparison.labels], rows)] if rows else []
    for run in comparison.runs:
        label = comparison.label(run)
        if run.drawn:
            caption = (
                f"{label}, seed {comparison.seed}: runs of one sample shape begin with the "
                "same noise."
            )
            parts.append(
                ImageFile(
                    save_figure(run.drawn.grid, folder / f"samples-{run.run_id}.png"), caption
                )
            )
        if run.why_no_samples:
            parts.append(Paragraphs(f"No samples of {label}: {run.why_no_samples}."))
    return parts


def amount(budget: EqualBudget) -> str:
    """Format a budget: `150 steps`, `48 s`."""
    if budget.axis == "seconds":
        return format_duration(budget.amount)
    return f"{round(budget.amount):,} steps"


def summary_text(comparison: Comparison) -> str:
    """Name the run with the lower held-out error at equal budgets, then the runs' parameters and
    speeds.
    """
    sentences = [fork_sentence(comparison, run) for run in comparison.runs if run.line]
    sentences += [
        *_ranking(comparison),
        comparison.measured_apart("eval"),
        comparison.measured_apart("quality"),
    ]
    sizes = []
    for run in comparison.runs:
        pace = ""
        if run.samples_per_second:
            pace = f" and trained at {format_number(run.samples_per_second)} samples/s"
        sizes.append(f"{comparison.label(run)} has {run.parameters:,} parameters{pace}")
    sentences.append(f"{'; '.join(sizes)}.")
    others = [
        f"{comparison.label(run)} ({run.status})"
        for run in comparison.runs
        if run.status != "finished"
    ]
    if others:
        sentences.append(f"Not finished: {', '.join(others)}.")
    return " ".join(filter(None, sentences))


def fork_sentence(comparison: Comparison, run: ComparedRun) -> str:
    """Say which run a fork goes on from: `wide goes on from base at step 400.`"""
    parent = run.line[0]
    known = {each.run_id: comparison.label(each) for each in comparison.runs}
    name = known.get(parent.run_id, f"run {parent.run_id}")
    return f"{comparison.label(run)} goes on from {name} at step {parent.step:,}."


def _ranking(comparison: Comparison) -> Iterator[str]:
    """Sentences on which run is better at equal budgets."""
    if comparison.obstacle:
        yield f"Which run is better cannot be said: {comparison.obstacle}."
        return
    if not comparison.budgets:
        yield "Which run is better cannot be said: the runs were evaluated at no common step."
        return
    clauses = [_clause(comparison, budget) for budget in comparison.budgets]
    yield f"Held-out error ({comparison.main}): {'; '.join(clauses)}."
    far = {seed: None for budget in comparison.budgets for seed in comparison.far_pairs(budget)}
    if far:
        yield far_sentence([*far]).strip()
    if None in [comparison.difference(budget) for budget in comparison.budgets]:
        yield "Each is one run: whether the settings or the seed made a difference is not known."
    if any(len(budget.order) > 1 and not comparison.error(budget) for budget in comparison.budgets):
        yield (
            "No run is named where the error of the difference is not known: without values by "
            "held-out sample, and of one run beside a group of seeds."
        )
    unranked = [comparison.label(run) for run in comparison.runs if not run.held_out]
    if unranked:
        yield f"{_listed(unranked)} cannot be ranked, without held-out metrics."


def _clause(comparison: Comparison, budget: EqualBudget) -> str:
    """Clause on the two lowest at a budget, with the error over held-out draws; of groups the
    interval over seeds.
    """
    at = f"at equal {'time' if budget.axis == 'seconds' else 'steps'} ({amount(budget)})"
    names = [comparison.label(comparison.evaluated[place]) for place in budget.order[:2]]
    values = [format_number(budget.values[place]) for place in budget.order[:2]]
    if len(values) < 2:
        if names:
            return f"only {names[0]} has a number {at}: {values[0]}"
        return f"no run has a number {at}"
    interval = comparison.difference(budget)
    if interval:
        found = describe_difference(interval, (names[0], names[1]), "min", comparison.main)
        return f"{found}, means {values[0]} and {values[1]} {at}"
    interval = comparison.over_draws(budget)
    if interval is None:
        return f"{names[0]} has {values[0]}, {names[1]} {values[1]} {at}"
    error = f"(+- {interval.half_width:.2g} over held-out draws, 95 %)"
    if not interval.excludes_zero:
        return f"{names[0]} and {names[1]} are level: {values[0]} and {values[1]} {error} {at}"
    lead = format_number(-interval.mean)
    return f"{names[0]} is lowest by {lead} {error}: {values[0]}, then {names[1]}: {values[1]} {at}"


def _listed(parts: Sequence[str]) -> str:
    """Join with commas: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def _rows(columns: Sequence[Mapping[str, Cell]]) -> list[Cells]:
    """A row for each key, without rows that are empty in all columns."""
    return [row for row in _by_key(columns) if any(cell not in (None, "") for cell in row[1:])]


def _properties(run: ComparedRun) -> dict[str, Cell]:
    return {
        "run": run.run_id,
        "name": run.name,
        "family": run.family,
        "status": run.status,
        "seeds": run.spec.get("seed") if run.members else None,
        "step": run.step,
        "samples seen": run.samples,
        "training time": None if run.seconds is None else format_duration(run.seconds),
        "cost": run.cost,
        "samples/s (median)": run.samples_per_second,
        "parameters": run.parameters,
    }


def runs_tables(comparison: Comparison) -> list[Table]:
    """Tables of the runs' properties and cost, and of the last values of their metrics."""
    runs = comparison.runs
    names = dict.fromkeys([TRAIN_LOSS, *(f"{HELD_OUT}{name}" for name in comparison.common)])
    names |= dict.fromkeys(sorted(name for run in runs for name in run.curves))
    metrics: list[dict[str, Cell]] = []
    for run in runs:
        values = {name: _last_value(run, name) for name in names}
        values |= {f"measurement of {group}": each.shown for group, each in run.measured.items()}
        metrics.append(values)
    return [
        Table(["", *comparison.labels], _rows([*map(_properties, runs)])),
        Table(["last value", *comparison.labels], _rows(metrics), f"{_NOTES} {_READING}"),
    ]


def _last_value(run: ComparedRun, name: str) -> Cell:
    """A metric's last value, of the training loss the last median; of a group with half the
    interval over seeds.
    """
    if name not in run.curves:
        return None
    if run.members:
        return run.last_interval(name).text()
    steps = run.curves[name].steps
    values = run.curves[name].values
    if name == TRAIN_LOSS:
        recent = steps > steps[-1] * (1 - 1 / WINDOWS)
    else:
        recent = slice(-1, None)
    return float(np.median(values[recent]))


def _budgets(comparison: Comparison) -> Part:
    """The main held-out metric at equal budgets, or the reason why there is none."""
    if comparison.obstacle:
        return Paragraphs(f"Held-out metrics are not compared: {comparison.obstacle}.")
    if not comparison.budgets:
        return Paragraphs("The runs were evaluated at no common step beyond their start.")
    rows: list[Cells] = []
    for budget in comparison.budgets:
        axis = "training time" if budget.axis == "seconds" else "steps"
        row: list[Cell] = [axis, amount(budget), *budget.values]
        error = comparison.error(budget)
        if error is None:
            row += ["not known", None]
        else:
            lowest = comparison.label(comparison.evaluated[budget.order[0]])
            row += [lowest if error.excludes_zero else "level", error.text()]
        rows.append(row)
    runs = [comparison.label(run) for run in comparison.evaluated]
    columns = ["equal", "largest common", *runs, "lowest", "lowest minus next"]
    return Table(columns, rows, f"Held-out {comparison.main}: {_BUDGETS}")


def _drawing(run: ComparedRun) -> dict[str, Cell]:
    """How a run's samples were drawn."""
    if run.drawn is None:
        return {}
    return {
        "weights of step": run.drawn.step,
        "samples": run.drawn.num,
        "sampling": run.drawn.settings,
        "seconds a sample": run.drawn.seconds,
    }
