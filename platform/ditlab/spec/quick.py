"""A run of about a minute out of any experiment, and a sweep of a few short trials out of any sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment, load_experiment
from ditlab.spec.overrides import Assignment, apply_overrides, assign, merge, nested, parse_overrides, value_at
from ditlab.spec.sweep import Sweep, build_sweep, load_sweep
from ditlab.spec.sweep_axes import num_combinations
from ditlab.spec.sweep_checks import SMALLEST_POPULATION, crossed_axes
from ditlab.spec.sweep_space import check_sweep, experiment_for
from ditlab.spec.values import format_value

STEPS = 20
BATCH = 16
NAME_ENDING = "-quick"

SpecT = TypeVar("SpecT")
RHYTHM = 10
"""Steps between evaluations where a scheduler compares trials as they train."""
TRIALS = 2
LENGTHS = ("training.steps", "training.epochs", "schedule.warmup", "schedule.warmup_epochs")
"""Fields along which a short sweep has no axis; nor along the batch's."""
Changes = dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Quick(Generic[SpecT]):
    """A spec made short."""

    spec: SpecT
    changes: dict[str, tuple[Any, Any]]
    """Value before and after, by dotted path."""

    def lines(self) -> list[str]:
        """Lines for people: each change."""
        changed = [
            f"  {path}={format_value(after)} (was {format_value(before)})"
            for path, (before, after) in self.changes.items()
        ]
        return [f"--quick makes {len(changed)} changes:", *changed] if changed else ["--quick changes nothing."]

    def to_dict(self) -> dict[str, Any]:
        """The changes, as `--json` has them."""
        return {"quick": {path: {"was": was, "is": new} for path, (was, new) in self.changes.items()}}


def load_quick_experiment(path: Path, overrides: Sequence[str] = ()) -> Quick[Experiment]:
    """Load an experiment and make it short. What an override sets, or a part of, stays. Raises UserError."""
    given = {assignment.path: assignment.value for assignment in parse_overrides(overrides)}
    try:
        return shorten_experiment(load_experiment(path, overrides), given)
    except UserError:  # `training.steps=10` alone may not fit the file's warm-up
        own = load_experiment(path)
        changes = shorten_experiment(own, given).changes
        assignments = [Assignment(path, after, f"--quick {path}") for path, (_, after) in changes.items()]
        shorter = assign(own.to_dict(), assignments, class_for)
        return Quick(build_experiment(apply_overrides(shorter, overrides, class_for), str(path)), changes)


def shorten_experiment(
    experiment: Experiment, given: Mapping[str, Any] | None = None, *, every: int | None = None, quality: int = 0
) -> Quick[Experiment]:
    """Make an experiment short, without the paths `given`, which have been set already.

    `every` is the number of steps between evaluations (None: one evaluation, at the end), `quality` the number of
    samples that quality figures keep. Raises UserError where a length that was given does not fit the others.
    """
    given, before, short = dict(given or {}), experiment.to_dict(), experiment
    for is_needed, changes in _changes(before, given, every, quality):
        # the number of steps that was given goes along: without it, a length in epochs could not be taken away
        free = (path for path in changes if path == "training.steps" or not is_given(path, given))
        changes = {path: changes[path] for path in free}
        try:
            short = short.replace_all(changes)
        except UserError:
            if is_needed:
                raise
    after = short.to_dict()
    paths = [path for _, changes in _changes(before, given, every, quality) for path in changes]
    values = {path: (value_at(before, path.split(".")), value_at(after, path.split("."))) for path in paths}
    changed = {path: pair for path, pair in values.items() if pair[0] != pair[1] and not is_given(path, given)}
    return Quick(short, changed)


def is_given(path: str, given: Mapping[str, Any]) -> bool:
    """Return True if a path, one above it or one below it has been set."""
    return any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in given)


def _changes(
    before: dict[str, Any], given: Mapping[str, Any], every: int | None, quality: int
) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(whether it is needed, values by path) of the changes that are made together."""
    steps = _steps(before, given)
    yield False, {"name": before["name"].removesuffix(NAME_ENDING)[:90] + NAME_ENDING}
    if steps is not None:
        yield True, {"training.steps": steps, "training.epochs": None, **_warmup(before["schedule"], steps)}
    if not is_given("batch", given):
        yield False, _batch(before)
    evaluation = before["evaluation"]
    if evaluation["every"] is not None or every:
        yield False, {"evaluation.every": every or max(steps or STEPS, evaluation["every"])}
    yield (
        False,
        {
            "evaluation.samples": min(evaluation["samples"], 4),
            "evaluation.limit": min(evaluation["limit"], 32),
            "evaluation.quality": min(evaluation["quality"], quality),
        },
    )
    if before["checkpoint"]["every"] is not None:
        yield False, {"checkpoint.every": max(steps or STEPS, before["checkpoint"]["every"])}
    if "steps" in before["sampling"]:
        yield False, {"sampling.steps": min(before["sampling"]["steps"] or 10, 10)}
    yield False, {"engine.compile": False}


def _steps(before: dict[str, Any], given: Mapping[str, Any]) -> int | None:
    """Steps of the short run; None where its length in epochs was given."""
    own: dict[str, Any] = {}
    for path, value in given.items():
        if path.split(".")[0] == "training":
            own = merge(own, nested(path.split("."), value))
    if (steps := value_at(own, ["training", "steps"])) is not None:
        return steps if isinstance(steps, int) else None
    if value_at(own, ["training", "epochs"]) is not None:
        return None
    start = before.get("start")
    first = start["step"] if start and start["state"] == "all" else 0
    return min(before["training"]["steps"] or first + STEPS, first + STEPS)


def _warmup(schedule: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A warm-up of a tenth of the steps, where there is one."""
    if schedule.get("warmup_epochs"):
        return {"schedule.warmup_epochs": 0.0, "schedule.warmup": steps // 10}
    warmup = schedule.get("warmup")
    return {"schedule.warmup": min(warmup, steps // 10)} if warmup else {}


def _batch(before: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of which each worker has as many samples as others, in whole micro-batches."""
    workers, batch = before["resources"]["workers"], before["batch"]
    most = workers["max"] if isinstance(workers, dict) else workers
    each = max(1, BATCH // most)
    if batch["size"] <= each * most:
        return {}
    if batch["micro"] is None:
        return {"batch.size": each * most}
    micro = min(batch["micro"], each)
    return {"batch.size": each // micro * micro * most, "batch.micro": micro}


def load_quick_sweep(path: Path, overrides: Sequence[str] = ()) -> Quick[Sweep]:
    """Load a sweep and make it short. What an override sets, or a part of, stays. Raises UserError."""
    given = {one.path: one.value for one in parse_overrides(overrides)}
    return shorten_sweep(load_sweep(path, overrides), given, str(path))


def shorten_sweep(sweep: Sweep, given: Mapping[str, Any] | None = None, source: str = "") -> Quick[Sweep]:
    """Make a sweep short: few trials, few values of each grid axis, short experiments.

    `given` are paths that have been set already, with their values; `source` begins messages. Raises UserError for a
    sweep that is wrong.
    """
    given, source, plain = dict(given or {}), source or sweep.name, sweep.to_dict()
    without = _axes_of_lengths(sweep, given)
    changes: Changes = {"name": (sweep.name, sweep.name.removesuffix(NAME_ENDING)[:90] + NAME_ENDING)}
    changes |= {f"fixed.{path}": change for path, change in _shorter_trials(sweep, given, without).items()}
    if sweep.scheduler.kind != "none":  # its milestones lie within the short trials
        field = "interval" if sweep.scheduler.kind == "pbt" else "grace"
        if not is_given(f"scheduler.{field}", given):
            changes[f"scheduler.{field}"] = (getattr(sweep.scheduler, field), RHYTHM)
    changes |= {f"space.{path}": (plain["space"][path], None) for path in without}
    short = _replaced(sweep, {path: after for path, (_, after) in changes.items()})
    # Of the axes that are crossed, the first keeps two values, the others one.
    for number, (path, axis) in enumerate(crossed_axes(short).items()):
        listed = axis.listed()
        if listed is None or is_given(f"space.{path}", given):
            continue
        values = list(listed[: 1 if number else 2])
        if len(listed) > len(values) and (narrowed := _narrowed(short, path, values, given)):
            changes[f"space.{path}.values"] = (list(listed), values)
            short = narrowed
    short = _with_few_trials(short, given)
    check_sweep(short, source)
    changes["trials"] = (sweep.trials, short.trials)
    return Quick(short, {path: (was, new) for path, (was, new) in changes.items() if was != new})


def _shorter_trials(sweep: Sweep, given: Mapping[str, Any], without: Sequence[str]) -> Changes:
    """Fields that each trial has otherwise, by path; `without` are axes that are left out."""
    ours = {path.removeprefix("fixed."): value for path, value in given.items() if path.startswith("fixed.")}
    axes = dict.fromkeys(path for path in sweep.space if path not in without)
    every = None if sweep.scheduler.kind == "none" else RHYTHM
    quality = 100 if any(metric.startswith("quality/") for metric in sweep.metrics) else 0
    try:
        trial = experiment_for(sweep, {})
    except UserError:  # what was set by hand alone may not fit, such as a length
        fixed = {path: value for path, value in sweep.fixed.items() if path not in ours}
        trial = experiment_for(sweep.model_copy(update={"fixed": fixed}), {})
    return shorten_experiment(trial, {**axes, **ours, "name": None}, every=every, quality=quality).changes


def _axes_of_lengths(sweep: Sweep, given: Mapping[str, Any]) -> list[str]:
    """Axes that a short sweep leaves out: unless they are all there are, or another one depends on them."""
    found = [path for path in sweep.space if path in LENGTHS or path.startswith("batch.")]
    needed = {name for axis in sweep.space.values() for name in axis.when}
    if len(found) == len(sweep.space):
        return []
    return [path for path in found if path not in needed and not is_given(f"space.{path}", given)]


def _narrowed(sweep: Sweep, path: str, values: Sequence[Any], given: Mapping[str, Any]) -> Sweep | None:
    """The sweep with these values of an axis alone; None where another axis needs those left out."""
    short = _replaced(sweep, {f"space.{path}": {"kind": "grid", "values": values, "when": sweep.space[path].when}})
    try:
        check_sweep(_with_few_trials(short, given), short.name)
    except UserError:
        return None
    return short


def _with_few_trials(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    """The sweep with the fewest trials that its search and its scheduler allow; with its own where they were given."""
    if is_given("trials", given) or sweep.trials is None:
        return sweep
    count = num_combinations(crossed_axes(sweep))
    most = SMALLEST_POPULATION if sweep.scheduler.kind == "pbt" else TRIALS
    if sweep.search.kind == "random":
        most = -(-most // count) * count
    return _replaced(sweep, {"trials": min(sweep.trials, count if sweep.search.kind == "grid" else most)})


def _replaced(sweep: Sweep, changes: Mapping[str, Any]) -> Sweep:
    """The sweep with fields changed: `fixed.P` and `space.P` name entries, null removes an axis."""
    mapping = sweep.to_dict()
    for path, value in changes.items():
        top, _, below = path.partition(".")
        if top == "space" and value is None:
            del mapping[top][below]
        else:
            mapping[top] = {**mapping[top], below: value} if below else value
    return build_sweep(mapping, sweep.name)
