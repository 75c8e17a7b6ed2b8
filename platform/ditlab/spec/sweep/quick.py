"""A sweep of a few short trials out of any sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.quick import NAME_ENDING, Quick, is_given, shorten_experiment
from ditlab.spec.reading.overrides import parse_overrides
from ditlab.spec.sweep.conditions import num_combinations
from ditlab.spec.sweep.loading import build_sweep, load_sweep
from ditlab.spec.sweep.rules import SMALLEST_POPULATION, crossed_axes
from ditlab.spec.sweep.space import check_sweep, experiment_for
from ditlab.spec.sweep.spec import Sweep

RHYTHM = 10
"""Steps between evaluations where a scheduler compares trials as they train."""
TRIALS = 2
LENGTHS = ("training.steps", "training.epochs", "schedule.warmup", "schedule.warmup_epochs")
"""Fields along which a short sweep has no axis; nor along the batch's."""

Changes = dict[str, tuple[Any, Any]]


def load_quick_sweep(path: Path, overrides: Sequence[str] = ()) -> Quick[Sweep]:
    """Load a sweep and make it short. What an override sets, or a part of, stays. Raises UserError."""
    given = {one.path: one.value for one in parse_overrides(overrides)}
    return shorten_sweep(load_sweep(path, overrides), given, str(path))


def shorten_sweep(sweep: Sweep, given: Mapping[str, Any] | None = None, source: str = "") -> Quick[Sweep]:
    """Make a sweep short: few trials, few values of each grid axis, short experiments.

    `given` are paths that have been set already, with their values; `source` begins messages. Raises UserError for a
    sweep that is wrong.
    """
    given, source = dict(given or {}), source or sweep.name
    changes: Changes = {"name": (sweep.name, sweep.name.removesuffix(NAME_ENDING)[:90] + NAME_ENDING)}
    changes |= {f"fixed.{path}": change for path, change in _shorter_trials(sweep, given).items()}
    changes |= _scheduler(sweep, given)
    plain = sweep.to_dict()
    changes |= {f"space.{path}": (plain["space"][path], None) for path in _axes_of_lengths(sweep, given)}
    short = _replaced(sweep, {path: after for path, (_, after) in changes.items()})
    for path, values in _fewer_values(short, given):
        if narrowed := _narrowed(short, path, values, given):
            changes[f"space.{path}.values"] = (list(sweep.space[path].listed() or ()), list(values))
            short = narrowed
    short = _with_few_trials(short, given)
    check_sweep(short, source)
    changes["trials"] = (sweep.trials, short.trials)
    return Quick(short, {path: (was, new) for path, (was, new) in changes.items() if was != new})


def _shorter_trials(sweep: Sweep, given: Mapping[str, Any]) -> Changes:
    """Fields that each trial has otherwise, by path."""
    ours = {path.removeprefix("fixed."): value for path, value in given.items() if path.startswith("fixed.")}
    lengths = _axes_of_lengths(sweep, given)
    axes = dict.fromkeys(path for path in sweep.space if path not in lengths)
    every = None if sweep.scheduler.kind == "none" else RHYTHM
    quality = 100 if any(metric.startswith("quality/") for metric in sweep.metrics) else 0
    trial = _trial(sweep, ours)
    return shorten_experiment(trial, {**axes, **ours, "name": None}, every=every, quality=quality).changes


def _trial(sweep: Sweep, ours: Mapping[str, Any]) -> Experiment:
    """The base with `fixed`; without what was set by hand where that alone does not fit, such as a length."""
    try:
        return experiment_for(sweep, {})
    except UserError:
        fixed = {path: value for path, value in sweep.fixed.items() if path not in ours}
        return experiment_for(sweep.model_copy(update={"fixed": fixed}), {})


def _scheduler(sweep: Sweep, given: Mapping[str, Any]) -> Changes:
    """Milestones of the scheduler within the short trials."""
    if sweep.scheduler.kind == "none":
        return {}
    knob = "interval" if sweep.scheduler.kind == "pbt" else "grace"
    path, value = f"scheduler.{knob}", getattr(sweep.scheduler, knob)
    return {} if is_given(path, given) else {path: (value, RHYTHM)}


def _axes_of_lengths(sweep: Sweep, given: Mapping[str, Any]) -> list[str]:
    """Axes that a short sweep leaves out: unless they are all there are, or another one depends on them."""
    found = [path for path in sweep.space if path in LENGTHS or path.startswith("batch.")]
    needed = {name for axis in sweep.space.values() for name in axis.when}
    if len(found) == len(sweep.space):
        return []
    return [path for path in found if path not in needed and not is_given(f"space.{path}", given)]


def _fewer_values(sweep: Sweep, given: Mapping[str, Any]) -> list[tuple[str, Sequence[Any]]]:
    """(path, values that it keeps) of the axes that are crossed: two of the first, one of the others."""
    listed = {path: axis.listed() for path, axis in crossed_axes(sweep).items()}
    first = next(iter(listed), None)
    kept = {path: values[: 2 if path == first else 1] for path, values in listed.items() if values is not None}
    return [(path, kept[path]) for path in kept if not is_given(f"space.{path}", given)]


def _narrowed(sweep: Sweep, path: str, values: Sequence[Any], given: Mapping[str, Any]) -> Sweep | None:
    """The sweep with these values of an axis; None where it has no more, or another axis needs those left out."""
    axis = sweep.space[path]
    if len(axis.listed() or ()) <= len(values):
        return None
    short = _replaced(sweep, {f"space.{path}": {"kind": "grid", "values": list(values), "when": axis.when}})
    try:
        check_sweep(_with_few_trials(short, given), short.name)
    except UserError:
        return None
    return short


def _with_few_trials(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    """The sweep with the fewest trials that its search and its scheduler allow; with its own where they were given."""
    if is_given("trials", given) or sweep.trials is None:
        return sweep
    count, most = (
        num_combinations(crossed_axes(sweep)),
        SMALLEST_POPULATION if sweep.scheduler.kind == "pbt" else TRIALS,
    )
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
