"""Page of a comparison as HTML and Markdown: a summary in sentences, tables with a column a run, and figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, sqrt
from pathlib import Path

import numpy as np

from ditlab.intervals import describe_difference, seed_band
from ditlab.reports.comparison import (
    AXES,
    HELD_OUT,
    MOST_APART,
    PAUSE_STEPS,
    TRAIN_LOSS,
    WINDOWS,
    ComparedRun,
    Comparison,
    CurveAxis,
    EqualBudget,
    RunCurve,
    RunSamples,
    smoothed,
)
from ditlab.reports.formatting import Cell, Cells, format_duration, format_number
from ditlab.reports.page import Code, ImageFile, Page, Paragraphs, Part, Section, Table, write_html, write_markdown
from ditlab.reports.rendering.panels import panel_size
from ditlab.reports.rendering.render import save_figure
from ditlab_models.figures import Curve, Figure, ImageGrid, Lines, grid_columns

LEVEL = 0.01
"""Two values are called level if they differ by less than this fraction of the lower one."""
PLACE_PATHS = ("name", "tracking.", "checkpoint.storage")
"""Spec paths of a run's name and of where it was tracked and stored."""
MEASUREMENT_NOTE = "Figures of one name are the same measurement where the row `measurement` is equal."
_UNEVEN = (
    " A run that goes on well beyond one of these points is met there in the middle of its learning-rate schedule, "
    "which counts against it."
)
_READING = (
    "Lower is better for frechet and kernel; nearest well below nearest_held_out would mean copies of training samples."
)
_READING_AGREEMENT = (
    " Higher is better for agreement, the share of samples that show what their captions say: agreement_real is that "
    "of real images, agreement_chance that of chance."
)
_SIZE = (4.4, 3.0)
"""Inches of a panel of curves."""
_SIDE_BY_SIDE_INCHES = 15.0
_UNITS = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""(smallest duration in seconds, seconds a unit, the unit's name)."""
_TAKEN = {
    "all": " It took over all of its state.",
    "averaged": " It took over its averaged weights.",
    "trained": " It took over its trained weights.",
}
_NEXT = {"report": "its page, with figures and timeline", "verify": "whether its records can be relied on"}
"""Answers of commands that take a run, by command."""
_TIME_NOTE = (
    "Training time is the sum of the intervals between training metrics in each run's journal, on the machine that it "
    "ran on. An interval that holds an evaluation or a resume, or one longer than a minute and than "
    f"{PAUSE_STEPS} median steps, counts as the median step."
)
_COUNTING = (
    "A fork with all of its parent's state counts steps and samples from the first ancestor's first step; its training "
    "time is its own alone."
)


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write `comparison.html`, `.md` and pictures into `folder`; return them. Raises OSError where that fails."""
    runs = comparison.runs
    curves = _curves(comparison, folder)
    specs: Part = Paragraphs("The specs differ in nothing but names and places.")
    if different := _differences(runs):
        caption = (
            "Paths that differ; an empty cell is a path that the run does not have. Left out: its name, and where it "
            "was tracked and stored."
        )
        specs = Table(["path", *comparison.labels], different, caption)
    samples, pictures = _samples(comparison, folder)
    sections = [
        Section("Runs", runs_tables(comparison)),
        Section("Forks", fork_parts(comparison)),
        Section("Differences of the specs", [specs]),
        Section("Parameters by component", [Table(["component", *comparison.labels], _parameter_counts(runs))]),
        Section("Loss curves", curves),
        Section("Equal budgets", budget_parts(comparison)),
        Section("Sampling and quality", quality_parts(comparison)),
        Section("Samples", samples),
        Section("Next commands", [Code(_next_commands(runs), "shell")]),
    ]
    page = Page(_listed(comparison.labels), summary_text(comparison), [each for each in sections if each.parts])
    return [
        write_html(page, folder / "comparison.html"),
        write_markdown(page, folder / "comparison.md"),
        *(part.path for part in curves if isinstance(part, ImageFile)),
        *pictures,
    ]


def _parameter_counts(runs: Sequence[ComparedRun]) -> list[Cells]:
    training_only = _by_key([run.training_only for run in runs])
    return [
        *_by_key([run.components for run in runs]),
        ["total", *(run.parameters for run in runs)],
        *([f"{name} (training only, not in the total)", *counts] for name, *counts in training_only),
    ]


def _next_commands(runs: Sequence[ComparedRun]) -> str:
    shown = [run.members[0] if run.members else run for run in runs]
    return "\n".join(
        f"ditlab {command} {run.run_id}   # {run.name}: {purpose}"
        for command, purpose in _NEXT.items()
        for run in shown
    )


def _curves(comparison: Comparison, folder: Path) -> list[Part]:
    parts: list[Part] = []

    def draw(titles: Mapping[str, str], name: str, caption: str) -> None:
        parts.append(ImageFile(save_figure(curves_figure(comparison, titles), folder / name), caption))

    without = [comparison.label(run) for run in comparison.runs if TRAIN_LOSS not in run.curves]
    if without:
        parts.append(Paragraphs(f"Without training metrics in the journal: {', '.join(without)}."))
    if len(without) < len(comparison.runs):
        draw({TRAIN_LOSS: "training loss"}, "training-loss.png", _loss_caption(comparison.runs))
    if not comparison.common:
        return [*parts, Paragraphs(f"No held-out curves: {comparison.obstacle}.")]
    note = f" Not comparable: {comparison.obstacle}." if comparison.obstacle else ""
    first = comparison.common[0]
    caption = f"Held-out {first} during training.{note}"
    draw({f"{HELD_OUT}{first}": f"held-out {first}"}, f"held-out-{re.sub('[^A-Za-z0-9._]', '-', first)}.png", caption)
    # of a part of a mixture (`NAME/velocity`), the main metric alone: the table has all of them
    shown = [name for name in comparison.common[1:] if "/" not in name or name.endswith(f"/{comparison.main}")]
    if shown:
        caption = f"The other held-out metrics that the runs have in common.{note}"
        draw({f"{HELD_OUT}{name}": f"held-out {name}" for name in shown}, "held-out-others.png", caption)
    return parts


def _loss_caption(runs: Sequence[ComparedRun]) -> str:
    caption = (
        "Training loss over steps, samples seen and training time. Pale: as logged. Strong: running median over "
        f"1/{WINDOWS} of the run's points."
    )
    weighted = ("objective.", "data.weights.")
    objectives = [{path: value for path, value in run.spec.items() if path.startswith(weighted)} for run in runs]
    if any(objective != objectives[0] for objective in objectives):
        caption += " The runs' objectives differ: heights of these curves are not comparable."
    return caption


def _samples(comparison: Comparison, folder: Path) -> tuple[list[Part], list[Path]]:
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
    """Draw metrics, `names` with their titles, over steps, samples and time; the training loss with its median."""
    panels: list[Lines] = []
    ends = []
    for name, title in names.items():
        curves = {place: run.curves[name] for place, run in enumerate(comparison.runs) if name in run.curves}
        last = [f"{comparison.labels[at]} {format_number(float(each.values[-1]))}" for at, each in curves.items()]
        ends.append(f"{title}: {', '.join(last)}")
        for axis in AXES:
            labels = comparison.labels if not panels else None
            bands = {at: _band(comparison.runs[at], name, curve) for at, curve in curves.items()}
            shown_title = title if axis == "steps" else ""
            panels.append(_panel(curves, bands, axis, shown_title, labels, name == TRAIN_LOSS))
    about = "Curves over steps, samples seen and training time, a colour a run"
    return Figure(panels, columns=3, alt=f"{about}. Last values of {'; '.join(ends)}.")


def _band(run: ComparedRun, name: str, curve: RunCurve) -> np.ndarray | None:
    """Half the 95 % interval over seeds at each point of a group's mean curve; None for one run or a noisy curve."""
    if not run.members or name == TRAIN_LOSS:
        return None
    members = [each.curves[name] for each in run.members]
    band = seed_band([each.values[np.searchsorted(each.steps, curve.steps)] for each in members])
    return np.asarray((band.high - band.low) / 2)


def _panel(
    curves: Mapping[int, RunCurve],
    bands: Mapping[int, np.ndarray | None],
    axis: CurveAxis,
    title: str,
    labels: Sequence[str] | None,
    is_noisy: bool,
) -> Lines:
    scale = 1.0
    label = {"steps": "steps", "samples": "samples seen", "seconds": "training time"}[axis]
    ends = [curve.along(axis)[-1] for curve in curves.values() if np.isfinite(curve.along(axis)).any()]
    if not ends:
        return Lines([], "", f"{label}: not known", title, size=_SIZE)
    if axis == "seconds":
        longest = float(np.nanmax(ends))
        scale, unit = next((scale, unit) for least, scale, unit in _UNITS if longest >= least)
        label = f"{label} in {unit}"
    drawn = []
    for place, curve in curves.items():
        if is_noisy:
            drawn.append(Curve(curve.along(axis) / scale, curve.values, colour=place, weight="faint"))
        shown = smoothed(curve) if is_noisy else curve
        name = labels[place] if labels else ""
        x = shown.along(axis) / scale
        band = bands[place]
        drawn.append(Curve(x, shown.values, name, band, colour=place, marked=not is_noisy))
    values = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves.values()])
    is_positive = len(values) > 0 and bool((values > 0).all())
    return Lines(drawn, "", label, title, log_y=is_positive, size=_SIZE)


def side_by_side(grids: Sequence[tuple[str, Figure]]) -> Figure | None:
    """Put samples of runs into one figure, uncaptioned images in squares; None for one run or several panels."""
    if len(grids) < 2 or any(len(figure.panels) != 1 for _, figure in grids):
        return None
    panels = []
    for label, figure in grids:
        panel = replace(figure.panels[0], title=label)
        if isinstance(panel, ImageGrid) and not panel.captions:
            num = len(panel.images)
            panel = replace(panel, columns=grid_columns(num, ceil(sqrt(num))))
        panels.append(panel)
    widest = max(panel_size(panel).width for panel in panels)
    columns = min(len(panels), max(1, int(_SIDE_BY_SIDE_INCHES / widest)))
    return Figure(panels, columns=ceil(len(panels) / ceil(len(panels) / columns)))


def fork_parts(comparison: Comparison) -> list[Part]:
    """Build a table for each fork: what it changed of its nearest ancestor among the runs; empty without forks."""
    parts: list[Part] = []
    for run in (each for each in comparison.runs if each.line):
        about = fork_sentence(comparison, run) + _TAKEN.get(run.spec.get("start.state", ""), "")
        ancestor = comparison.nearest_ancestor(run)
        if ancestor is None:
            parts.append(Paragraphs(about))
        elif rows := _differences((run, ancestor), (*PLACE_PATHS, "start")):
            parts.append(Table(["changed", comparison.label(run), comparison.label(ancestor)], rows, about))
        else:
            parts.append(Paragraphs(f"{about} It changed nothing of the spec."))
    return [*parts, Paragraphs(_COUNTING)] if parts else []


def _differences(runs: Sequence[ComparedRun], skipped: tuple[str, ...] = PLACE_PATHS) -> list[Cells]:
    """Rows of the paths in which specs differ."""
    rows = _by_key([run.spec for run in runs])
    return [row for row in rows if len(set(row[1:])) > 1 and not str(row[0]).startswith(skipped)]


def _by_key(mappings: Sequence[Mapping[str, Cell]]) -> list[Cells]:
    """A row for each key, with the value that each mapping has."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    return [[key, *(mapping.get(key) for mapping in mappings)] for key in keys]


def amount(budget: EqualBudget) -> str:
    """Format a budget: `150 steps`, `19,200 samples`, `48 s`."""
    if budget.axis == "seconds":
        return format_duration(budget.amount)
    return f"{round(budget.amount):,} {budget.axis}"


def summary_text(comparison: Comparison) -> str:
    """Name the run with the lower held-out error at equal budgets, then the runs' parameters and speeds."""
    sentences = [fork_sentence(comparison, run) for run in comparison.runs if run.line]
    sentences += [_ranking(comparison), *(comparison.measured_apart(group) for group in ("eval", "quality"))]
    sizes = []
    for run in comparison.runs:
        pace = f" and trained at {format_number(run.samples_per_second)} samples/s" if run.samples_per_second else ""
        sizes.append(f"{comparison.label(run)} has {run.parameters:,} parameters{pace}")
    sentences.append(f"{'; '.join(sizes)}.")
    others = [f"{comparison.label(run)} ({run.status})" for run in comparison.runs if run.status != "finished"]
    if others:
        sentences.append(f"Not finished: {', '.join(others)}.")
    return " ".join(filter(None, sentences))


def fork_sentence(comparison: Comparison, run: ComparedRun) -> str:
    """Say which run a fork goes on from: `wide goes on from base at step 400.`"""
    parent = run.line[0]
    known = {each.run_id: comparison.label(each) for each in comparison.runs}
    name = known.get(parent.run_id, f"run {parent.run_id}")
    ancestor = comparison.nearest_ancestor(run)
    through = ""
    if ancestor and ancestor.run_id != parent.run_id:
        through = f", by which it descends from {comparison.label(ancestor)}"
    return f"{comparison.label(run)} goes on from {name} at step {parent.step:,}{through}."


def _ranking(comparison: Comparison) -> str:
    if comparison.obstacle:
        return f"Which run is better cannot be said: {comparison.obstacle}."
    equals_steps = len({run.batch_size for run in comparison.evaluated}) == 1
    unmeasured = [budget for budget in comparison.budgets if budget.every]
    shown = [
        budget for budget in comparison.budgets if not (budget.every or (budget.axis == "samples" and equals_steps))
    ]
    clauses = [_clause(comparison, budget) for budget in shown]
    if unmeasured:
        clauses.append(_unmeasured(unmeasured))
    if not shown:
        reason = next(iter(clauses), "the runs were evaluated at no common step")
        return f"Which run is better cannot be said: {reason}."
    sentences = [f"Held-out error ({comparison.main}): {'; '.join(clauses)}."]
    sentences += _reservations(comparison, shown)
    if unranked := [comparison.label(run) for run in comparison.runs if not run.held_out]:
        sentences.append(f"{_listed(unranked)} cannot be ranked, without held-out metrics.")
    return " ".join(filter(None, sentences))


def _reservations(comparison: Comparison, shown: Sequence[EqualBudget]) -> Iterator[str]:
    """Sentences on what the numbers do not tell; some are empty."""
    differences = [comparison.difference(budget) for budget in shown]
    if None in differences and any(_lowest(comparison, budget)[0] for budget in shown):
        yield "Each is one run: whether the settings or the seed made the difference is not known."
    if any(differences):
        yield comparison.why_unpaired()
    single = [budget for budget, found in zip(shown, differences, strict=True) if not found]
    if any(len(budget.order) > 1 and comparison.noise(budget) is None for budget in single):
        yield "The error over held-out draws is not known: values by sample were not kept for all of them."


def _clause(comparison: Comparison, budget: EqualBudget) -> str:
    """Clause on the two lowest at a budget: their values, the difference, and its error over held-out draws; of groups
    the interval over seeds."""
    winner, values = _lowest(comparison, budget)
    at = f"at equal {'time' if budget.axis == 'seconds' else budget.axis} ({amount(budget)})"
    if len(values) < 2:
        return f"only {winner} has a number {at}: {format_number(values[0])}" if winner else f"no run has a number {at}"
    if interval := comparison.difference(budget):
        names = [comparison.label(comparison.evaluated[place]) for place in budget.order[:2]]
        said = describe_difference(interval, (names[0], names[1]), "min", comparison.main or "")
        return f"{said}, means {' and '.join(map(format_number, values))} {at}"
    has_many = len(comparison.evaluated) > 2
    error = comparison.noise(budget)
    noise = "" if error is None else f" (± {error:.2g} over held-out draws, 95 %)"
    lower, upper = map(format_number, values)
    if winner is None:
        who = "the two lowest" if has_many else "the runs"
        found = f"{who} are level{'' if noise else f' (within {LEVEL:.0%})'}: {lower} and {upper}{noise}"
    else:
        by = f"{winner} is {'lowest' if has_many else 'lower'} by {format_number(values[1] - values[0])}{noise}"
        found = f"{by}: {lower}, {'the next' if has_many else 'against'} {upper}"
    return f"{found} {at}"


def _unmeasured(budgets: Sequence[EqualBudget]) -> str:
    """Clause on budgets at which not all runs are measured."""
    places = _listed([amount(budget) for budget in budgets])
    every = min(budget.every for budget in budgets)
    return f"not all are measured at {places}, the most that all reach; evaluation.every={every} would tell"


def _lowest(comparison: Comparison, budget: EqualBudget) -> tuple[str | None, list[float]]:
    """Label of the run with the lowest value, None where the two lowest are level or none is finite; the two values.

    Level: apart by less than the error over held-out draws, or, where that is not known, by less than LEVEL; of groups,
    where the interval over seeds holds 0.
    """
    order = budget.order[:2]
    values = [budget.values[place] for place in order]
    if interval := comparison.difference(budget):
        return comparison.label(comparison.evaluated[order[0]]) if interval.excludes_zero else None, values
    error = comparison.noise(budget)
    least = LEVEL * abs(values[0]) if error is None and values else error
    is_level = not values or (len(values) == 2 and least is not None and values[1] - values[0] < least)
    return None if is_level else comparison.label(comparison.evaluated[order[0]]), values


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
    tables = [Table(["", *comparison.labels], _rows([*map(_properties, runs)]), _TIME_NOTE)]
    known = {name for run in runs for name in run.curves}
    common = [TRAIN_LOSS, *(f"{HELD_OUT}{name}" for name in comparison.common)]
    names = [name for name in common if name in known] + sorted(known - set(common))
    metrics: list[Cells] = [[name, *(_last_value(run, name) for run in runs)] for name in names]
    note = f"The training loss is the median over the last {100 // WINDOWS}% of the steps."
    if any(run.members for run in runs):
        note += " Of a group: the mean over its seeds, with half the 95 % interval of the mean."
    if any(run.measurement for run in runs):
        metrics.append(["measurement", *(run.measurement.shown if run.measurement else None for run in runs)])
        note += f" {MEASUREMENT_NOTE} {comparison.measured_apart('eval')}".rstrip()
    if metrics:
        tables.append(Table(["last value", *comparison.labels], metrics, note))
    return tables


def _last_value(run: ComparedRun, name: str) -> Cell:
    """A metric's last value, of the training loss the last median; of a group with half the interval over seeds."""
    if name not in run.curves:
        return None
    if run.members:
        return run.last_interval(name).text()
    steps, values = run.curves[name].steps, run.curves[name].values
    recent = steps > steps[-1] * (1 - 1 / WINDOWS) if name == TRAIN_LOSS else slice(-1, None)
    return float(np.median(values[recent]))


def budget_parts(comparison: Comparison) -> list[Part]:
    """The main held-out metric at equal budgets, or the reason why there is none."""
    main = comparison.main
    budgets = comparison.budgets
    if comparison.obstacle or main is None:
        return [Paragraphs(f"Held-out metrics are not compared: {comparison.obstacle}.")]
    if not budgets:
        return [Paragraphs("The runs were evaluated at no common step beyond their start.")]
    rows = [_budget_row(comparison, budget) for budget in budgets]
    note = (
        f"Held-out {main} (lower is better) at the most at which all runs are measured: at an evaluation, or between "
        f"two within a factor of {MOST_APART} of it, interpolated on logarithmic axes."
    )
    if len(rows) < len(AXES):
        note += " Training time is not known for all runs."
    if _goes_on(comparison, main):
        note += _UNEVEN
    if any(not run.members for run in comparison.evaluated):
        note += " Of one training run: what another seed would give is not in these numbers."
    if any(run.members for run in comparison.evaluated):
        note += " Of a group: the mean over its seeds."
    columns = ["equal", "largest common", *(comparison.label(run) for run in comparison.evaluated), "lowest"]
    return [Table(columns, rows, note)]


def _budget_row(comparison: Comparison, budget: EqualBudget) -> Cells:
    if budget.every:
        lowest = f"not measured there; evaluation.every={budget.every} would tell"
    else:
        lowest = _lowest(comparison, budget)[0] or "level"
    axis = "training time" if budget.axis == "seconds" else budget.axis
    return [axis, amount(budget), *budget.values, lowest]


def _goes_on(comparison: Comparison, main: str) -> bool:
    """True if a run whose learning rate falls was trained well beyond a budget."""
    falling = [
        run.held_out[main] for run in comparison.evaluated
        if run.spec.get("schedule.kind") != "constant" and run.spec.get("schedule.decay_start") != "null"
    ]  # fmt: skip
    return any(curve.along(budget.axis)[-1] > 1.1 * budget.amount for curve in falling for budget in comparison.budgets)


def _drawing(drawn: RunSamples, names: Iterable[str]) -> dict[str, Cell]:
    """How samples were drawn, and their quality by name; of a group the mean with half the interval over seeds."""
    return {
        "weights of step": drawn.step,
        "samples": drawn.num,
        "sampling": drawn.settings,
        "network evaluations a sample": drawn.evaluations,
        "seconds a sample": drawn.seconds,
        **{name: drawn.quality.get(name) for name in names},
        **{name: interval.text() for name, interval in drawn.over_seeds.items()},
        "measurement": drawn.measurement.shown if drawn.measurement else None,
    }


def quality_parts(comparison: Comparison) -> list[Part]:
    """Sampling settings, cost and quality of the runs' samples; empty where none were drawn."""
    drawn = [run.drawn for run in comparison.runs if run.drawn]
    if not drawn:
        return []
    names = dict.fromkeys(name for each in drawn for name in each.quality)
    rows = _rows([_drawing(run.drawn, names) if run.drawn else {} for run in comparison.runs])
    caption = (
        f"Each run with its own sampling settings, all with seed {comparison.seed}, {comparison.batch} samples at once "
        f"on {comparison.device}."
    )
    if names:
        caption += f" Quality is measured {comparison.quality_note}. {_READING}"
    if "quality/agreement" in names:
        caption += _READING_AGREEMENT
    return [Table(["", *comparison.labels], rows, caption), *map(Paragraphs, _quality_notes(comparison))]


def _quality_notes(comparison: Comparison) -> Iterator[str]:
    """Paragraphs on figures that do not compare, and on runs without figures."""
    if apart := comparison.measured_apart("quality"):
        yield f"{MEASUREMENT_NOTE} {apart}"
    if len({run.data for run in comparison.runs if run.drawn and run.drawn.quality}) > 1:
        yield "The runs differ in their data, and each is measured against its own: do not compare these."
    reasons = [
        f"{comparison.label(run)}: {run.drawn.why_no_quality}."
        for run in comparison.runs
        if run.drawn and run.drawn.why_no_quality
    ]
    if reasons:
        yield f"No quality metrics. {' '.join(reasons)}"
