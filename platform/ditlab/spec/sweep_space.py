"""From a sweep to its trials: their values by number, the experiment that each is, and whether all
of that works.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from pydantic import ValidationError

from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import SELECTORS, Assignment, assign, changed_values, is_below
from ditlab.spec.sweep import (
    MAX_TRIALS,
    NoScheduler,
    Pbt,
    Scheduler,
    SeedRange,
    Sweep,
    kinds_with_seed_range,
)
from ditlab.spec.sweep_axes import (
    Axis,
    Grid,
    ListAxis,
    asked_values,
    combinations,
    fulfilled,
    holds,
    in_order,
)
from ditlab.spec.values import format_value

# What decides the values of trials and their ranking; how many train at once and for how long does
# not.
CONTENT = ("base", "fixed", "space", "search", "scheduler", "metric", "mode", "seed")
# Why a field is the same in every trial, and what to do about an axis of it.
COMMON = {
    "name": "trials are named after the sweep; remove the axis",
    "tracking": "all trials of a sweep are tracked in one place; set it under `fixed` instead",
    "notify": "trials send no messages; set the sweep's own `notify` instead",
    "checkpoint.storage": (
        "all trials of a sweep are kept in one place; set it under `fixed` instead"
    ),
    "resources": "trials share the machine in equal parts; set it under `fixed` instead",
}
# Fields that a population can change in the middle of a run.
PBT_AREAS = (
    "optimizer.",
    "schedule.",
    "objective.",
    "training.clip.",
    "training.ema.",
    "sampling.",
)
SMALLEST_POPULATION = 4


def draw_values(space: Mapping[str, Axis], draw: Callable[[str, Axis], Any]) -> dict[str, Any]:
    """The values of one trial: `draw(path, axis)` of every axis whose `when` holds, in the file's
    order. `draw` is called for an axis after it has been called for those that its `when` names."""
    values: dict[str, Any] = {}
    for path in in_order(space):
        if holds(space[path], values):
            values[path] = draw(path, space[path])
    return {path: values[path] for path in space if path in values}


def crossed_axes(sweep: Sweep) -> dict[str, Axis]:
    """The axes whose values are all tried: every one of a grid search, those of kind `grid` of a
    random one.
    """
    return {
        path: axis
        for path, axis in sweep.space.items()
        if sweep.search.kind == "grid" or isinstance(axis, Grid)
    }


def values_key(values: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal values of axes alone, where `true` is not 1."""
    return json.dumps(values, sort_keys=True, default=repr)


def enumerate_trials(sweep: Sweep) -> list[dict[str, Any]] | None:
    """The values of every configuration, by its number; None for a search that chooses them as it
    goes (optuna).

    Draws that repeat an earlier one are dropped (`num_repeats`), save those of a population, whose
    trials train apart from their first perturbation on.
    """
    drawn = _drawn_trials(sweep)
    if drawn is None or isinstance(sweep.scheduler, Pbt):
        return drawn
    distinct: dict[str, dict[str, Any]] = {}
    for values in drawn:
        distinct.setdefault(values_key(values), values)
    return list(distinct.values())


def num_repeats(sweep: Sweep) -> int:
    """Count the draws that repeat an earlier one, and are not trained again."""
    return len(_drawn_trials(sweep) or ()) - len(enumerate_trials(sweep) or ())


def valid_combinations(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield all values that make an experiment, in the order of a grid; none where an axis has no
    end of values, or where there are more than `MAX_TRIALS`.
    """
    if any(axis.listed() is None for axis in sweep.space.values()):
        return
    found = combinations(sweep.space, MAX_TRIALS + 1)
    if len(found) > MAX_TRIALS:
        return
    for values in found:
        with suppress(UserError):
            experiment_for(sweep, values)
            yield values


def _drawn_trials(sweep: Sweep) -> list[dict[str, Any]] | None:
    """Draw the values of `trials`, by number; None for a search that chooses them as it goes.

    Grid: the product in the file's order, later axes fastest; an axis whose `when` does not hold is
    absent, and no combination comes twice. Random: a value depends on seed, number and path
    alone, so more trials or another axis change no other value. With axes of kind `grid`, trial i
    has combination i mod n of them and the draws of number i // n, so that combinations are
    compared on the same draws.
    """
    if sweep.search.kind == "optuna":
        return None
    crossed = combinations(crossed_axes(sweep), MAX_TRIALS)
    if sweep.search.kind == "grid":
        return crossed
    trials = []
    for number in range(sweep.trials or 0):
        block, index = divmod(number, len(crossed))

        def draw(
            path: str, axis: Axis, block: int = block, chosen: Mapping[str, Any] = crossed[index]
        ) -> Any:
            if path in chosen:
                return chosen[path]
            return axis.draw(random.Random(f"{sweep.seed}/{block}/{path}"))

        trials.append(draw_values(sweep.space, draw))
    return trials


def written(values: Mapping[str, Any]) -> str:
    """A trial's values in one line: `optimizer.lr=0.001, model.depth=4`."""
    return ", ".join(f"{path}={format_value(value)}" for path, value in values.items())


def experiment_for(
    sweep: Sweep,
    values: Mapping[str, Any],
    name: str | None = None,
    source: str | None = None,
    seed: int | None = None,
) -> Experiment:
    """The base with `fixed`, a trial's values and its seed (None: as they are), validated in full;
    a kind is set before the fields beside it. Raises UserError, one line a mistake, that names axes
    and values and begins with `source`."""
    source = source or (f"with {written(values)}" if values else "base with `fixed`")
    assignments = [
        Assignment(path, value, f"{label}.{path}={format_value(value)}")
        for label, entries in (("fixed", sweep.fixed), ("space", values))
        for path, value in entries.items()
    ]
    try:
        mapping = assign(sweep.base, assignments, class_for)
    except UserError as error:
        hint = ""
        kind = next((path for path in sweep.space if path.split(".")[-1] in SELECTORS), None)
        if kind:
            hint = f" A field of some trials alone is an axis with `when: {{{kind}: ...}}`."
        raise UserError(f"{source}: {error}{hint}") from None
    if name is not None:
        mapping = {**mapping, "name": name}
    if seed is not None:
        mapping = {**mapping, "seed": seed}
    return build_experiment(mapping, source)


def typical_values(sweep: Sweep) -> dict[str, Any]:
    """Choose values that make an experiment, for checks of the sweep as a whole.

    These are the first trial's where trials can be enumerated; else none, or the first value of
    each axis.
    """
    values = enumerate_trials(sweep)
    if values:
        return values[0]
    with suppress(UserError):
        experiment_for(sweep, {})
        return {}
    return draw_values(sweep.space, lambda _, axis: axis.ends()[0])


def values_with(sweep: Sweep, path: str, value: Any) -> dict[str, Any]:
    """Choose values of a trial that has this value on an axis, whose conditions they fulfil."""
    needed = fulfilled(sweep.space, path)

    def draw(name: str, axis: Axis) -> Any:
        if name == path:
            return value
        return next(iter(needed.get(name) or axis.ends()))

    return draw_values(sweep.space, draw)


def unshared_axes(sweep: Sweep) -> list[str]:
    """Return the axes along which trials of one seed train on other samples, times or noise
    (`Experiment.draws`).
    """
    found = []
    for path, axis in sweep.space.items():
        draws: list[dict[str, Any]] = []
        for value in axis.ends():
            # values that do not go together are found where trials are checked
            with suppress(UserError):
                draws.append(experiment_for(sweep, values_with(sweep, path, value)).draws())
        if any(each != draws[0] for each in draws):
            found.append(path)
    return found


def check_sweep(sweep: Sweep, source: str) -> None:
    """Raise UserError, beginning with `source`, for everything that can be found wrong without
    building a network. Every trial that can be known beforehand is validated as an experiment of
    its own."""
    build_experiment(sweep.base, f"{source}: base")
    problem = next(axis_problems(sweep.space, sweep.fixed), None)
    if problem:
        raise UserError(f"{source}: {problem}")
    reference = experiment_for(sweep, {}, source=f"{source}: base with `fixed`")
    problems = [_seed_problems(sweep), _metric_problems(sweep), _number_problems(sweep)]
    if sweep.search.kind != "optuna":
        problems.append(_grid_problems(sweep))
    problems.append(_scheduler_problems(sweep, reference))
    problem = next(chain(*problems), None)
    if problem:
        raise UserError(f"{source}: {problem}")
    for path, axis in sweep.space.items():
        for value in axis.ends():
            _check_value(sweep, path, value, source)
    for number, values in enumerate(enumerate_trials(sweep) or ()):
        experiment_for(sweep, values, source=f"{source}: trial {number} ({written(values)})")


def axis_problems(space: Mapping[str, Axis], fixed: Mapping[str, Any]) -> Iterator[str]:
    """Find what `fixed` and `space` set that trials share or that both set, and mistakes in the
    `when` of axes.
    """
    if "name" in fixed:
        yield (
            f"fixed.name={format_value(fixed['name'])}: trials are named after the sweep; set "
            "the sweep's name."
        )
    for path in space:
        yield from _overlaps(path, space, fixed)
        for field, reason in COMMON.items():
            if is_below(path, field) or is_below(field, path):
                yield f"space.{path} cannot vary, as {reason}."
    for path, axis in space.items():
        for name, condition in axis.when.items():
            problem = _condition_problem(path, name, condition, space)
            if problem:
                yield problem
    order = in_order(space)
    for path in space:
        if path not in order or not all(fulfilled(space, path).values()):
            yield (
                f"space.{path} never exists, as its `when` and those of the axes that it names "
                "lead in a circle or ask for different values of one axis; remove one of these "
                "conditions."
            )


def _overlaps(path: str, space: Mapping[str, Axis], fixed: Mapping[str, Any]) -> Iterator[str]:
    """Find what `fixed` or another axis sets within the field of an axis."""
    inside = next((name for name in fixed if is_below(name, path)), None)
    if inside:
        yield f"fixed.{inside} and space.{path} both set {inside}; remove the one or the other."
    others = [name for name in space if name != path]
    inside = next((name for name in others if is_below(name, path)), None)
    if inside:
        yield (
            f"space.{path} gives the whole of {path}, and space.{inside} a field in it; "
            f"write the values of {path} out with that field, or make axes of its single "
            "fields."
        )


def _condition_problem(path: str, name: str, condition: Any, space: Mapping[str, Axis]) -> str:
    """Sentence on a condition of an axis that can never hold; empty for any other."""
    where = f"space.{path}.when={{{name}: {format_value(condition)}}}"
    if name not in space:
        others = [other for other in space if other != path]
        return f"{where} names no axis; {nearest(name, others)}"
    asked = asked_values(space[name], condition)
    if asked and all(map(space[name].takes, asked)):
        return ""
    return (
        f"{where} asks for a value that {name} never has (kind {space[name].kind}); give a value "
        "of an axis of kind choice, grid or int."
    )


def _seed_problems(sweep: Sweep) -> Iterator[str]:
    """Find why an axis or the scheduler does not go with `seeds`."""
    if sweep.num_seeds > 1 and "seed" in sweep.space:
        yield (
            f"space.seed and seeds={sweep.num_seeds} both set the seed of a trial; remove "
            "space.seed, so that configurations are compared by their mean over seeds, or set "
            "seeds to 1."
        )
    takes_range = isinstance(sweep.scheduler, Scheduler) and sweep.scheduler.takes_seed_range
    if isinstance(sweep.seeds, SeedRange) and not takes_range:
        yield (
            f"seeds={{min: {sweep.seeds.min}, max: {sweep.seeds.max}}} is of "
            f"scheduler.kind={' or '.join(kinds_with_seed_range())} alone, which adds seeds "
            f"where configurations are close (it is {sweep.scheduler.kind}); set seeds to one "
            "number."
        )


def _metric_problems(sweep: Sweep) -> Iterator[str]:
    """Find why the search or the scheduler cannot rank by a metric."""
    search = sweep.search.kind
    scheduler = sweep.scheduler.kind
    if len(sweep.metrics) > 1 and (scheduler != "none" or search != "optuna"):
        yield (
            f"metric={format_value(sweep.metric)} names several, which only search.kind=optuna "
            f"weighs against each other (it is {search}), and scheduler.kind={scheduler} ranks "
            "by one; name one metric, or set search.kind to optuna and scheduler.kind to none."
        )
    for metric in sweep.metrics:
        if scheduler != "none" and metric.startswith(("time/", "perf/")):
            yield (
                f"metric={metric} is measured over a whole trial and not at its evaluations, "
                f"by which scheduler.kind={scheduler} would stop it; set scheduler.kind to "
                "none."
            )
        if not metric.startswith("train/"):
            continue
        for path in sweep.space:
            if f"{path}.".startswith(("objective.", "data.weights.", "data.parts.")):
                yield (
                    f"metric={metric} is the loss that space.{path} changes, so small weights, "
                    "or weight on the easiest data, would win; rank by a held-out metric "
                    "without weights, such as eval/velocity."
                )


def _number_problems(sweep: Sweep) -> Iterator[str]:
    """Find why there are too many runs, or no end of them."""
    search = sweep.search.kind
    num = (sweep.trials or len(combinations(crossed_axes(sweep), MAX_TRIALS))) * sweep.num_seeds
    if sweep.num_seeds > 1 and num > MAX_TRIALS:
        yield (
            f"seeds={sweep.num_seeds} makes {num:,} runs of {num // sweep.num_seeds:,} "
            f"configurations, more than {MAX_TRIALS:,}; lower seeds or trials."
        )
    if search != "grid" and sweep.trials is None:
        yield f"trials=null leaves search.kind={search} without an end; give a number."


def _grid_problems(sweep: Sweep) -> Iterator[str]:
    """Find why axes cannot be crossed, or `trials` does not fit the number of their
    combinations.
    """
    search = sweep.search.kind
    trials = sweep.trials
    crossed = crossed_axes(sweep)
    for path, axis in crossed.items():
        if axis.listed() is None:
            yield (
                f"space.{path}.kind={axis.kind} has no end of values for search.kind=grid; "
                "use kind: grid with values written out, or set search.kind to random."
            )
        other = next((name for name in axis.when if name not in crossed), None)
        if other:
            yield (
                f"space.{path}, of kind grid, depends on {other}, which is drawn again in "
                f"every trial; make space.{other} an axis of kind grid too, or space.{path} "
                "one of kind choice."
            )
    count = len(combinations(crossed, MAX_TRIALS + 1))
    sizes = ", ".join(f"{path} {len(axis.listed() or ()):,}" for path, axis in crossed.items())
    if count > MAX_TRIALS:
        yield f"space has more than {MAX_TRIALS:,} combinations ({sizes}); take values out."
    if trials is None:
        return
    enough = f"{count}"
    is_enough = trials >= count
    if search == "random":
        enough = f"a multiple of {count}"
        is_enough = trials % count == 0
    if not is_enough:
        yield (
            f"space has {count:,} combinations ({sizes}), and trials={trials}; set trials to "
            f"{enough}, or take values out."
        )


def _scheduler_problems(sweep: Sweep, reference: Experiment) -> Iterator[str]:
    """Why a scheduler would never act, or act on trials that it cannot compare. `reference` is the
    base with `fixed`: its length and its evaluations are those of every trial."""
    scheduler = sweep.scheduler
    kind = scheduler.kind
    if isinstance(scheduler, NoScheduler):
        return
    if isinstance(scheduler, Pbt):
        field = "interval"
        value = scheduler.interval
    else:
        field = "grace"
        value = scheduler.grace
    steps = reference.training.steps
    every = reference.evaluation.every
    for path in sweep.space:
        for rhythm in ("training.steps", "training.epochs", "evaluation.every"):
            if is_below(rhythm, path):
                yield (
                    f"space.{path} gives trials a rhythm of their own, and "
                    f"scheduler.kind={kind} compares them at the same step; set "
                    f"fixed.{rhythm}, or set scheduler.kind to none."
                )
    if steps is None:
        yield (
            f"training.epochs={reference.training.epochs}, and scheduler.kind={kind} counts steps; "
            "set fixed.training.epochs to null and fixed.training.steps to a number."
        )
        return
    if every is None or every > value:
        is_reached = every is not None and every < steps
        later = f", or scheduler.{field} to {every}" if is_reached else ""
        yield (
            f"evaluation.every={format_value(every)} gives no figure to rank by within "
            f"scheduler.{field}={value} steps; set fixed.evaluation.every to {value} or a part "
            f"of it{later}."
        )
        return
    if value >= steps:
        yield (
            f"scheduler.{field}={value} leaves nothing of training.steps={steps} to stop or "
            f"change; set scheduler.{field} below {steps}."
        )
    if isinstance(scheduler, Scheduler):
        yield from scheduler.problems(sweep, reference)
    if isinstance(scheduler, Pbt):
        yield from _pbt_problems(sweep, scheduler.interval, every)


def _pbt_problems(sweep: Sweep, interval: int, every: int) -> Iterator[str]:
    """Find why trials make no population, or an axis cannot change in the middle of a run."""
    if sweep.num_seeds > 1:
        yield (
            f"seeds={sweep.num_seeds} repeats a configuration, and under scheduler.kind=pbt no "
            "trial stays a configuration, as it takes over weights and values of others; set "
            "seeds to 1, or scheduler.kind to none."
        )
    yield from off_evaluations("interval", interval, every, "at which trials are compared")
    too_few = sweep.trials is not None and sweep.trials < SMALLEST_POPULATION
    if sweep.search.kind != "random" or too_few or sweep.concurrent not in (None, sweep.trials):
        yield (
            f"search.kind={sweep.search.kind}, trials={format_value(sweep.trials)}, "
            f"concurrent={format_value(sweep.concurrent)} make no population for "
            "scheduler.kind=pbt, which trains at once; set search.kind to random, trials to "
            f"{SMALLEST_POPULATION} or more, and concurrent to null."
        )
    for path, axis in sweep.space.items():
        values = axis.values if isinstance(axis, ListAxis) else ()
        is_part = any(isinstance(value, dict) for value in values)
        is_kind = path.split(".")[-1] in SELECTORS
        is_field = path.startswith(PBT_AREAS) and not is_kind and not is_part
        if axis.when or isinstance(axis, Grid) or not is_field:
            yield (
                f"space.{path} cannot change in the middle of a run, as scheduler.kind=pbt "
                "needs; vary single fields under "
                f"{', '.join(area.rstrip('.') for area in PBT_AREAS)}, and no kind, without "
                "`when` or kind: grid, or set scheduler.kind to asha."
            )


def off_evaluations(field: str, steps: int, every: int, use: str) -> Iterator[str]:
    """Find that a scheduler's steps lie between evaluations; `use` is a clause on what these are
    for.
    """
    if steps % every:
        below = steps // every * every
        yield (
            f"scheduler.{field}={steps} is no multiple of evaluation.every={every}, {use}; set "
            f"scheduler.{field} to {below} or {below + every}, or fixed.evaluation.every to "
            f"{math.gcd(steps, every)}."
        )


def _check_value(sweep: Sweep, path: str, value: Any, source: str) -> None:
    """One axis at one of its ends, its conditions fulfilled, the other axes as the base has them.
    Where that is refused, the others at the first of their values are asked too: widths and heads
    may only fit so."""
    needed = {path, *fulfilled(sweep.space, path)}
    alone = {name: axis for name, axis in sweep.space.items() if name in needed or axis.when}
    refused = ""
    for space in (alone, sweep.space):
        values = values_with(sweep.model_copy(update={"space": space}), path, value)
        try:
            experiment_for(sweep, values, source=f"{source}: space.{path} at {format_value(value)}")
            return
        except UserError as error:
            refused = refused or str(error)
    if isinstance(value, float):
        refused = refused.replace(
            "must be a whole number.", "must be a whole number; use an axis of kind int."
        )
    raise UserError(refused)


def differences(old: Sweep, new: Sweep) -> list[str]:
    """Return the differences that make trials of one no trials of the other:
    `space.optimizer.lr.high=0.01 (was 0.1)`. A default counts as if it were written out. More
    trials or seeds are the same sweep, fewer are not, and any value of a field that the scheduler
    lets change is."""
    before = old.to_dict()
    after = new.to_dict()
    may_change: tuple[str, ...] = (
        new.scheduler.may_change if isinstance(new.scheduler, Scheduler) else ()
    )
    for mapping in (before, after):
        for name in may_change:
            mapping["scheduler"].pop(name, None)
        with suppress(UserError, ValidationError):  # one of another version counts as it is written
            mapping["base"] = class_for(mapping["base"]).model_validate(mapping["base"]).to_dict()
    found = [
        f"{path}={format_value(value)} (was {format_value(earlier)})"
        for field in CONTENT
        for path, earlier, value in changed_values(before[field], after[field], field)
    ]
    if old.trials is not None and new.trials is not None and new.trials < old.trials:
        found.append(f"trials={new.trials} (was {old.trials})")
    if new.num_seeds < old.num_seeds:
        found.append(f"seeds={new.num_seeds} (was {old.num_seeds})")
    return found
