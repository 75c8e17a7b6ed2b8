"""Checks of a sweep: its `space` and `fixed` path by path, its number of trials, ranking and scheduler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.overrides import SELECTORS, Assignment, assign, check_path, depth, outermost_first, with_field
from ditlab.spec.sweep import MAX_TRIALS, Asha, Median, Pbt, Sweep
from ditlab.spec.sweep_axes import Axis, Grid, ListAxis, fulfilled, in_order, num_combinations
from ditlab.spec.values import format_value

# Why a field is the same in every trial.
COMMON = {
    "name": "trials are named after the sweep",
    "tracking": "all trials of a sweep are tracked in one place",
    "checkpoint.storage": "all trials of a sweep are kept in one place",
    "resources": "trials share the machine in equal parts",
}
WHOLE_GRID = 1_000  # combinations that `trials: null` stands for; more want to be written out
# Fields that a population can change in the middle of a run.
PBT_AREAS = ("optimizer.", "schedule.", "objective.", "training.clip.", "training.ema.", "sampling.")
SMALLEST_POPULATION = 4


def check_axes(sweep: Sweep, source: str) -> None:
    """Raise UserError, beginning with `source`, for the first mistake in `fixed`, `space` or a `when`."""
    labelled = [("fixed", path) for path in sweep.fixed] + [("space", path) for path in sweep.space]
    for label, path in labelled:
        if not all(path.split(".")):
            raise UserError(f"{source}: {label}.{path} is no path; write field names with dots between them.")
    if "name" in sweep.fixed:
        raise UserError(
            f"{source}: fixed.name={format_value(sweep.fixed['name'])}: {COMMON['name']}; set the sweep's name."
        )
    _check_overlaps(sweep, source)
    for path in sweep.space:
        for field, reason in COMMON.items():
            if below(path, field) or below(field, path):
                remedy = "remove the axis" if field == "name" else f"set fixed.{path} for all trials instead"
                raise UserError(f"{source}: space.{path} cannot vary, as {reason}; {remedy}.")
    _check_conditions(sweep, source)
    for label, path in sorted(labelled, key=lambda one: depth(one[1])):
        _check_path(sweep, path, label, source)


def below(path: str, above: str) -> bool:
    """Return True if a path is another one or leads to a field in it."""
    return f"{path}.".startswith(f"{above}.")


def _check_overlaps(sweep: Sweep, source: str) -> None:
    for path in sweep.space:
        if inside := next((name for name in sweep.fixed if below(name, path)), None):
            raise UserError(
                f"{source}: fixed.{inside} and space.{path} both set {inside}; remove the one or the other."
            )
        if inside := next((name for name in sweep.space if name != path and below(name, path)), None):
            raise UserError(
                f"{source}: space.{path} gives the whole of {path}, and space.{inside} a field in it; "
                f"write the values of {path} out with that field, or make axes of its single fields."
            )


def _check_conditions(sweep: Sweep, source: str) -> None:
    space = sweep.space
    for path, axis in space.items():
        for name, condition in axis.when.items():
            where = f"{source}: space.{path}.when={{{name}: {format_value(condition)}}}"
            if name not in space:
                raise UserError(f"{where} names no axis; {nearest(name, [other for other in space if other != path])}")
            if space[name].listed() is None:
                raise UserError(
                    f"{where} waits for one value of a range that meets none exactly (kind {space[name].kind}); "
                    "name an axis of kind choice, grid or int."
                )
            alone = not isinstance(condition, list) or space[name].takes(condition)
            for value in [condition] if alone else condition or [None]:
                if not space[name].takes(value):
                    listed = space[name].listed()
                    values = f"{listed[0]} to {listed[-1]}" if isinstance(listed, range) else format_value(listed)
                    raise UserError(f"{where} asks for a value that {name} never has; its values are {values}.")
    if circle := [path for path in space if path not in in_order(space)]:
        named = " and ".join(f"space.{path}" for path in circle)
        sentence = "wait for each other in their `when`; remove one of them."
        if len(circle) == 1:
            sentence = "waits for itself in its `when`; remove that."
        raise UserError(f"{source}: {named} {sentence}")
    for path in space:
        if never := next((name for name, values in fulfilled(space, path).items() if not values), None):
            raise UserError(
                f"{source}: space.{path} never exists, as its `when` and those of the axes that it names ask for "
                f"different values of {never}; remove one of these conditions."
            )


def _check_path(sweep: Sweep, path: str, label: str, source: str) -> None:
    """Against every kind that trials may have above the path."""
    keys = path.split(".")
    for chosen in _surroundings(sweep, path, label):
        known = {name: value for name, value in sweep.fixed.items() if _above(name, path)} | chosen
        assignments = [
            Assignment(name, value, f"{source}: {name}={format_value(value)}") for name, value in known.items()
        ]
        mapping = assign(sweep.base, outermost_first(assignments), class_for)
        try:
            cls = class_for(mapping if len(keys) < 3 else with_field(mapping, keys))
            check_path(cls, mapping, keys, f"{label}.{path}")
        except UserError as error:
            selector = next((name for name in chosen if name.split(".")[-1] in SELECTORS), None)
            hint = f" A field of some trials alone is an axis with `when: {{{selector}: ...}}`." if selector else ""
            raise UserError(f"{source}: {error}{hint}") from None


def _surroundings(sweep: Sweep, path: str, label: str) -> Iterator[dict[str, Any]]:
    """The values that axes above a path may have together, as far as its own `when` leaves them open."""
    asked = fulfilled(sweep.space, path) if label == "space" else {}
    above = {name: axis for name, axis in sweep.space.items() if name != path and _above(name, path)}
    choices = [[(name, value) for value in asked.get(name, axis.ends())] for name, axis in above.items()]
    for combination in itertools.product(*choices):
        yield dict(combination)


def _above(name: str, path: str) -> bool:
    """Return True if a field decides the fields at a path: a mapping around it, or the kind or family of one."""
    parent, _, last = name.rpartition(".")
    return name != path and (below(path, parent if last in SELECTORS else name) or name in ("model", "model.family"))


def crossed_axes(sweep: Sweep) -> dict[str, Axis]:
    """The axes whose values are all tried: every one of a grid search, those of kind `grid` of a random one."""
    return {path: axis for path, axis in sweep.space.items() if sweep.search.kind == "grid" or isinstance(axis, Grid)}


def check_number(sweep: Sweep, source: str) -> None:
    """Raise UserError where `trials` does not fit the search and its combinations. Makes none of them."""
    if sweep.search.kind != "grid" and sweep.trials is None:
        raise UserError(f"{source}: trials=null leaves search.kind={sweep.search.kind} without an end; give a number.")
    if sweep.search.kind == "optuna":
        return
    crossed = crossed_axes(sweep)
    for path, axis in crossed.items():
        if axis.listed() is None:
            raise UserError(
                f"{source}: space.{path}.kind={axis.kind} has no end of values for search.kind=grid; "
                "use kind: grid with values written out, or set search.kind to random."
            )
        if other := next((name for name in axis.when if name not in crossed), None):
            raise UserError(
                f"{source}: space.{path}, of kind grid, depends on {other}, which is drawn again in every trial; "
                f"make space.{other} an axis of kind grid too, or space.{path} one of kind choice."
            )
    count = num_combinations(crossed)
    sizes = ", ".join(f"{path} {len(axis.listed() or ()):,}" for path, axis in crossed.items())
    if count > (sweep.trials or WHOLE_GRID):
        limit = (
            f"trials={sweep.trials} are fewer"
            if sweep.trials
            else f"trials=null stands for at most {WHOLE_GRID:,} of them"
        )
        enough = f"a multiple of {count}" if sweep.search.kind == "random" else f"{count}"
        remedy = f"set trials to {enough}, or take values out" if count <= MAX_TRIALS else "take values out"
        raise UserError(f"{source}: space has {count:,} combinations ({sizes}), and {limit}; {remedy}.")
    if sweep.search.kind == "random" and sweep.trials is not None and sweep.trials % count:
        below = sweep.trials // count * count
        raise UserError(
            f"{source}: trials={sweep.trials} is no multiple of the {count} combinations of the grid axes ({sizes}), "
            f"each of which is tried on the same draws; set trials to {below} or {below + count}."
        )


def check_ranking(sweep: Sweep, source: str) -> None:
    """Raise UserError for a ranking that the search cannot make, or that says nothing."""
    several = len(sweep.metrics) > 1
    if several and sweep.scheduler.kind != "none":
        raise UserError(
            f"{source}: metric={format_value(sweep.metric)} names several, and scheduler.kind={sweep.scheduler.kind} "
            "ranks by one; name one metric, or set scheduler.kind to none."
        )
    if several and sweep.search.kind != "optuna":
        raise UserError(
            f"{source}: metric={format_value(sweep.metric)} names several, which only search.kind=optuna weighs "
            f"against each other (it is {sweep.search.kind}); name one metric, or set search.kind to optuna."
        )
    pace = next((name for name in sweep.metrics if name.startswith(("time/", "perf/"))), None)
    if pace and sweep.scheduler.kind != "none":
        raise UserError(
            f"{source}: metric={pace} is measured over a whole trial and not at its evaluations, by which "
            f"scheduler.kind={sweep.scheduler.kind} would stop it; set scheduler.kind to none."
        )
    weighing = next((path for path in sweep.space if path.split(".")[0] == "objective"), None)
    training = next((name for name in sweep.metrics if name.startswith("train/")), None)
    if weighing and training:
        raise UserError(
            f"{source}: metric={training} is the loss that space.{weighing} changes, so small weights would win; "
            "rank by a held-out metric without weights, such as eval/velocity."
        )
    mixing = next((path for path in sweep.space if f"{path}.".startswith(("data.weights.", "data.parts."))), None)
    if mixing and training:
        raise UserError(
            f"{source}: metric={training} is measured on what space.{mixing} mixes, so weight on the easiest part "
            "would win; rank by a held-out metric, which measures all parts, such as eval/velocity."
        )


def check_scheduler(sweep: Sweep, reference: Experiment, source: str) -> None:
    """Raise UserError where a scheduler would never act, or act on trials that it cannot compare.

    `reference` is the base with `fixed`: its length and its evaluations are those of every trial.
    """
    scheduler = sweep.scheduler
    if isinstance(scheduler, Asha | Median):
        _check_rhythm(sweep, reference, "grace", scheduler.grace, source)
    elif isinstance(scheduler, Pbt):
        _check_rhythm(sweep, reference, "interval", scheduler.interval, source)
        _check_takeovers(scheduler, reference.evaluation.every or 1, source)
        _check_population(sweep, source)
        _check_movable(sweep, source)


def _check_rhythm(sweep: Sweep, reference: Experiment, setting: str, value: int, source: str) -> None:
    kind, steps, every = sweep.scheduler.kind, reference.training.steps, reference.evaluation.every
    for field in ("training.steps", "training.epochs", "evaluation.every"):
        if path := next((path for path in sweep.space if f"{field}.".startswith(f"{path}.")), None):
            raise UserError(
                f"{source}: space.{path} gives trials a rhythm of their own, and scheduler.kind={kind} compares them "
                f"at the same step; set fixed.{field}, or set scheduler.kind to none."
            )
    if steps is None:
        raise UserError(
            f"{source}: training.epochs={reference.training.epochs}, and scheduler.kind={kind} counts steps; "
            "set fixed.training.epochs to null and fixed.training.steps to a number."
        )
    if every is None or every > value:
        raise UserError(
            f"{source}: evaluation.every={format_value(every)} gives no figure to rank by within scheduler.{setting}="
            f"{value} steps; set fixed.evaluation.every to {value} or a part of it."
        )
    if value >= steps:
        raise UserError(
            f"{source}: scheduler.{setting}={value} leaves nothing of training.steps={steps} to stop or change; "
            f"set scheduler.{setting} below {steps}."
        )


def _check_takeovers(scheduler: Pbt, every: int, source: str) -> None:
    if scheduler.interval % every:
        below = scheduler.interval // every * every
        raise UserError(
            f"{source}: scheduler.interval={scheduler.interval} is no multiple of evaluation.every={every}, at which "
            f"trials are compared; set scheduler.interval to {below} or {below + every}, or fixed.evaluation.every to "
            f"{math.gcd(scheduler.interval, every)}."
        )


def _check_population(sweep: Sweep, source: str) -> None:
    if sweep.search.kind != "random":
        raise UserError(
            f"{source}: search.kind={sweep.search.kind} cannot start the population of scheduler.kind=pbt; "
            "set search.kind to random."
        )
    if sweep.trials is not None and sweep.trials < SMALLEST_POPULATION:
        raise UserError(
            f"{source}: trials={sweep.trials} are no population for scheduler.kind=pbt; "
            f"set trials to {SMALLEST_POPULATION} or more."
        )
    if sweep.concurrent not in (None, sweep.trials):
        raise UserError(
            f"{source}: concurrent={sweep.concurrent} of trials={sweep.trials} would train, and the population of "
            f"scheduler.kind=pbt trains at once; set concurrent to null or {sweep.trials}."
        )


def _check_movable(sweep: Sweep, source: str) -> None:
    for path, axis in sweep.space.items():
        where = f"{source}: space.{path}"
        if axis.when:
            raise UserError(
                f"{where}.when={format_value(axis.when)} would make it come and go as scheduler.kind=pbt varies "
                "trials; remove `when`, or set scheduler.kind to asha."
            )
        if isinstance(axis, Grid):
            raise UserError(f"{where}.kind=grid cannot be varied by scheduler.kind=pbt; use kind: choice.")
        switches = path.split(".")[-1] in SELECTORS or (
            isinstance(axis, ListAxis) and any(isinstance(value, dict) for value in axis.values)
        )
        if switches or not path.startswith(PBT_AREAS):
            areas = ", ".join(area.rstrip(".") for area in PBT_AREAS)
            raise UserError(
                f"{where} cannot change in the middle of a run, as scheduler.kind=pbt needs; vary single fields under "
                f"{areas}, and no kind, or set scheduler.kind to asha."
            )
