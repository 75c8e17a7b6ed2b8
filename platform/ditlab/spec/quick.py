"""A run of about a minute out of any experiment, and a sweep of a few short trials out of any sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment, load_experiment, spec_name
from ditlab.spec.overrides import Assignment, assign, is_below, merge, nested, parse_overrides
from ditlab.spec.sweep import MAX_TRIALS, Sweep, build_sweep, load_sweep
from ditlab.spec.sweep_axes import combinations
from ditlab.spec.sweep_space import SMALLEST_POPULATION, check_sweep, crossed_axes, experiment_for
from ditlab.spec.values import format_value, value_at

STEPS = 20
BATCH = 16
NAME_ENDING = "-quick"

SpecT = TypeVar("SpecT")
RHYTHM = 10
"""Steps between evaluations where a scheduler compares trials as they train."""
TRIALS = SEEDS = 2
LENGTHS = ("training.steps", "training.epochs", "schedule.warmup", "schedule.warmup_epochs", "schedule.decay_start")
"""Fields along which a short sweep has no axis; nor along the batch's."""


@dataclass(frozen=True)
class Quick(Generic[SpecT]):
    """A spec made short."""

    spec: SpecT
    changes: dict[str, tuple[Any, Any]]
    """Value before and after, by dotted path."""

    def lines(self) -> list[str]:
        """Lines for people: each change."""
        pairs = self.changes.items()
        changed = [f"  {path}={format_value(new)} (was {format_value(was)})" for path, (was, new) in pairs]
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
        return Quick(build_experiment(assign(shorter, parse_overrides(overrides), class_for), spec_name(path)), changes)


def shorten_experiment(
    experiment: Experiment, given: Mapping[str, Any] | None = None, *, every: int | None = None, quality: int = 0
) -> Quick[Experiment]:
    """Make an experiment short, without the paths `given`, which have been set already.

    `every` is the number of steps between evaluations (None: one evaluation, at the end), `quality` the number of
    samples that quality figures keep. Raises UserError where a length that was given does not fit the others.
    """
    given, before, short = dict(given or {}), experiment.to_dict(), experiment
    paths: list[str] = []
    for changes in _changes(before, given, every, quality):
        free = [path for path in changes if not is_given(path, given)]
        # the number of steps that was given goes along: without it, a length in epochs could not be taken away
        with nullcontext() if "training.steps" in changes else suppress(UserError):
            short = short.replace_all({path: changes[path] for path in changes if path in (*free, "training.steps")})
        paths += free
    after = short.to_dict()
    found = {path: (value_at(before, path.split(".")), value_at(after, path.split("."))) for path in paths}
    return Quick(short, {path: (was, new) for path, (was, new) in found.items() if was != new})


def is_given(path: str, given: Mapping[str, Any]) -> bool:
    """Return True if a path, one above it or one below it has been set."""
    return any(is_below(path, other) or is_below(other, path) for other in given)


def _changes(
    before: dict[str, Any], given: Mapping[str, Any], every: int | None, quality: int
) -> Iterator[dict[str, Any]]:
    """Values by path of the changes that are made together."""
    own: dict[str, Any] = {}
    for path, value in given.items():
        own = merge(own, nested(path.split("."), value)) if is_below(path, "training") else own
    start, steps = before["start"], value_at(own, ["training", "steps"])
    if steps is None and value_at(own, ["training", "epochs"]) is None:
        most = (start["step"] if start and start["state"] == "all" else 0) + STEPS
        steps = min(before["training"]["steps"] or most, most)
    steps = steps if isinstance(steps, int) else None  # None where its length in epochs was given
    batch, evaluation, schedule, sampling = (before[name] for name in ("batch", "evaluation", "schedule", "sampling"))
    yield {"name": before["name"].removesuffix(NAME_ENDING)[:90] + NAME_ENDING}
    if steps is not None:
        length: dict[str, Any] = {"training.steps": steps, "training.epochs": None}
        if schedule.get("warmup_epochs"):
            length |= {"schedule.warmup_epochs": 0.0, "schedule.warmup": steps // 10}
        elif schedule.get("warmup"):
            length["schedule.warmup"] = min(schedule["warmup"], steps // 10)
        if schedule.get("decay_start"):
            length["schedule.decay_start"] = min(schedule["decay_start"], steps - max(1, steps // 5))
        yield length
    # Each worker has as many samples as others, in whole micro-batches.
    workers = before["resources"]["workers"]
    most = workers["max"] if isinstance(workers, dict) else workers
    each = max(1, BATCH // most)
    if batch["size"] > each * most and not is_given("batch", given):
        micro = min(batch["micro"] or each, each)
        sizes = {"batch.size": each // micro * micro * most}
        yield sizes if batch["micro"] is None else {**sizes, "batch.micro": micro}
    if evaluation["every"] is not None or every:
        yield {"evaluation.every": every or max(steps or STEPS, evaluation["every"])}
    most_drawn = {"samples": 4, "limit": 32, "quality": quality}
    yield {f"evaluation.{name}": min(evaluation[name], most) for name, most in most_drawn.items()}
    if before["checkpoint"]["every"] is not None:
        yield {"checkpoint.every": max(steps or STEPS, before["checkpoint"]["every"])}
    if "steps" in sampling:
        yield {"sampling.steps": min(sampling["steps"] or 10, 10)}
    yield {"engine.compile": False}


def load_quick_sweep(path: Path, overrides: Sequence[str] = ()) -> Quick[Sweep]:
    """Load a sweep and make it short. What an override sets, or a part of, stays. Raises UserError."""
    given = {one.path: one.value for one in parse_overrides(overrides)}
    return shorten_sweep(load_sweep(path, overrides), given, spec_name(path))


def shorten_sweep(sweep: Sweep, given: Mapping[str, Any] | None = None, source: str = "") -> Quick[Sweep]:
    """Make a sweep short: few trials, few values of each grid axis, short experiments. `given` are paths that have been
    set already, with their values; `source` begins messages. Raises UserError for a sweep that is wrong."""
    given, source, plain = dict(given or {}), source or sweep.name, sweep.to_dict()
    # Axes of lengths are left out, unless they are all there are, or another one depends on them.
    lengths = [path for path in sweep.space if path in LENGTHS or path.startswith("batch.")]
    kept = {name for axis in sweep.space.values() for name in axis.when}
    kept |= {path for path in sweep.space if is_given(f"space.{path}", given)}
    without = [path for path in lengths if path not in kept] if len(lengths) < len(sweep.space) else []
    changes: dict[str, tuple[Any, Any]] = {
        "name": (sweep.name, sweep.name.removesuffix(NAME_ENDING)[:90] + NAME_ENDING)
    }
    ours = {path.removeprefix("fixed."): value for path, value in given.items() if path.startswith("fixed.")}
    axes = dict.fromkeys(path for path in sweep.space if path not in without)
    try:
        trial = experiment_for(sweep, {})
    except UserError:  # what was set by hand alone may not fit, such as a length
        fixed = {path: value for path, value in sweep.fixed.items() if path not in ours}
        trial = experiment_for(sweep.model_copy(update={"fixed": fixed}), {})
    every = None if sweep.scheduler.kind == "none" else RHYTHM
    quality = 100 if any(metric.startswith("quality/") for metric in sweep.metrics) else 0
    of_trials = shorten_experiment(trial, {**axes, **ours, "name": None}, every=every, quality=quality).changes
    changes |= {f"fixed.{path}": change for path, change in of_trials.items()}
    if sweep.scheduler.kind != "none":  # its milestones lie within the short trials
        field = "interval" if sweep.scheduler.kind == "pbt" else "grace"
        if not is_given(f"scheduler.{field}", given):
            changes[f"scheduler.{field}"] = (getattr(sweep.scheduler, field), RHYTHM)
    changes |= {f"space.{path}": (plain["space"][path], None) for path in without}
    short = _replaced(sweep, {path: after for path, (_, after) in changes.items()})
    # Of the axes that are crossed, the first keeps two values, the others one, where no other axis needs the rest.
    for number, (path, axis) in enumerate(crossed_axes(short).items()):
        listed = list(axis.listed() or ())
        values = listed[: 1 if number else 2]
        if len(listed) == len(values) or is_given(f"space.{path}", given):
            continue
        narrowed = _replaced(short, {f"space.{path}": {"kind": "grid", "values": values, "when": axis.when}})
        with suppress(UserError):
            check_sweep(_with_few_trials(narrowed, given), short.name)
            changes[f"space.{path}.values"], short = (listed, values), narrowed
    short = _with_few_trials(short, given)
    check_sweep(short, source)
    changes["trials"] = (sweep.trials, short.trials)
    if sweep.num_seeds > SEEDS and not is_given("seeds", given):
        short = _replaced(short, {"seeds": SEEDS})
        changes["seeds"] = (plain["seeds"], SEEDS)
    return Quick(short, {path: (was, new) for path, (was, new) in changes.items() if was != new})


def _with_few_trials(sweep: Sweep, given: Mapping[str, Any]) -> Sweep:
    """The sweep with the fewest trials that its search and its scheduler allow; with its own where they were given."""
    if is_given("trials", given) or sweep.trials is None:
        return sweep
    count = len(combinations(crossed_axes(sweep), MAX_TRIALS))
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
