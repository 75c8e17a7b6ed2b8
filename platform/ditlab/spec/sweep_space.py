"""From a sweep to its trials: their values by number, the experiment that each is, and whether all of that works."""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.files import build_experiment
from ditlab.spec.overrides import SELECTORS, Assignment, assign, outermost_first
from ditlab.spec.sweep import Sweep
from ditlab.spec.sweep_axes import Axis, LogUniform, Uniform, fulfilled, holds, in_order
from ditlab.spec.sweep_checks import check_axes, check_number, check_ranking, check_scheduler, crossed_axes
from ditlab.spec.values import format_value

# What decides the values of trials and their ranking; how many train at once and for how long does not.
CONTENT = ("base", "fixed", "space", "search", "scheduler", "metric", "mode", "seed")


def draw_values(space: Mapping[str, Axis], draw: Callable[[str, Axis], Any]) -> dict[str, Any]:
    """The values of one trial: `draw(path, axis)` of every axis whose `when` holds, in the file's order.

    `draw` is called for an axis after it has been called for those that its `when` names.
    """
    values: dict[str, Any] = {}
    for path in in_order(space):
        if holds(space[path], values):
            values[path] = draw(path, space[path])
    return {path: values[path] for path in space if path in values}


def enumerate_trials(sweep: Sweep) -> list[dict[str, Any]] | None:
    """The values of every trial, by its number; None for a search that chooses them as it goes (optuna).

    Grid: the product in the file's order, later axes fastest; an axis whose `when` does not hold is left out, and no
    combination comes twice. Random: a value depends on seed, number and path alone, so more trials or another axis
    change no other value. With axes of kind `grid`, trial i has combination i mod n of them and the draws of number
    i // n, so that combinations are compared on the same draws.
    """
    if sweep.search.kind == "optuna":
        return None
    combinations = _combinations(crossed_axes(sweep))
    if sweep.search.kind == "grid":
        return combinations
    trials = []
    for number in range(sweep.trials or 0):
        block, index = divmod(number, len(combinations))
        trials.append(draw_values(sweep.space, _crossed(combinations[index], sweep.seed, block)))
    return trials


def experiment_for(sweep: Sweep, values: Mapping[str, Any], name: str | None = None) -> Experiment:
    """The base with `fixed` and a trial's values, validated in full; a kind is set before the fields beside it.

    Raises UserError, one line a mistake, that names axes and values.
    """
    return _build(sweep, values, f"with {written(values)}" if values else "base with `fixed`", name)


def check_sweep(sweep: Sweep, source: str) -> None:
    """Raise UserError, beginning with `source`, for everything that can be found wrong without building a network.

    Every trial that can be known beforehand is validated as an experiment of its own.
    """
    build_experiment(sweep.base, f"{source}: base")
    check_axes(sweep, source)
    reference = _build(sweep, {}, f"{source}: base with `fixed`")
    check_number(sweep, source)
    check_ranking(sweep, source)
    check_scheduler(sweep, reference, source)
    for path, axis in sweep.space.items():
        for value in axis.ends():
            _check_value(sweep, path, value, source)
    for number, values in enumerate(enumerate_trials(sweep) or ()):
        _build(sweep, values, f"{source}: trial {number} ({written(values)})")


def written(values: Mapping[str, Any]) -> str:
    """A trial's values in one line: `optimizer.lr=0.001, model.depth=4`."""
    return ", ".join(f"{path}={format_value(value)}" for path, value in values.items())


def differences(old: Sweep, new: Sweep) -> list[str]:
    """Return the differences that make trials of one no trials of the other: `space.optimizer.lr.high=0.01 (was 0.1)`;
    [] for none.

    A default counts as if it were written out. More trials are the same sweep, fewer are not.
    """
    before, after = old.to_dict(), new.to_dict()
    before["base"], after["base"] = _in_full(old.base), _in_full(new.base)
    found = [
        f"{path}={format_value(value)} (was {format_value(earlier)})"
        for field in CONTENT
        for path, earlier, value in _changes(before[field], after[field], field)
    ]
    if old.trials is not None and new.trials is not None and new.trials < old.trials:
        found.append(f"trials={new.trials} (was {old.trials})")
    return found


def _build(sweep: Sweep, values: Mapping[str, Any], source: str, name: str | None = None) -> Experiment:
    assignments = [
        Assignment(path, value, f"fixed.{path}={format_value(value)}") for path, value in sweep.fixed.items()
    ]
    assignments += [Assignment(path, value, f"space.{path}={format_value(value)}") for path, value in values.items()]
    try:
        mapping = assign(sweep.base, outermost_first(assignments), class_for)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return build_experiment(mapping if name is None else {**mapping, "name": name}, source)


def _check_value(sweep: Sweep, path: str, value: Any, source: str) -> None:
    """One axis at one of its ends, its conditions fulfilled, the other axes as the base has them.

    Where that is refused, the others at the first of their values are asked too: widths and heads, say, may only fit
    each other.
    """
    wanted = {name: values[0] for name, values in fulfilled(sweep.space, path).items()} | {path: value}
    alone = {name: axis for name, axis in sweep.space.items() if name in wanted or axis.when}

    def chosen(name: str, axis: Axis) -> Any:
        return wanted[name] if name in wanted else axis.ends()[0]

    try:
        _build(sweep, draw_values(alone, chosen), f"{source}: space.{path} at {format_value(value)}")
    except UserError as error:
        try:
            _build(sweep, draw_values(sweep.space, chosen), source)
        except UserError:
            message = str(error)
            if isinstance(sweep.space[path], Uniform | LogUniform):
                message = message.replace("must be a whole number.", "must be a whole number; use an axis of kind int.")
            raise UserError(message) from None


def _combinations(space: Mapping[str, Axis]) -> list[dict[str, Any]]:
    """The product of the axes' values in the file's order, later axes fastest; `{}` alone where there is no axis."""
    found: list[tuple[dict[str, int], dict[str, Any]]] = [({}, {})]
    for path in in_order(space):
        listed = space[path].listed()
        assert listed is not None, f"{path} has no end of values"
        found = [
            extended
            for places, values in found
            for extended in (
                [({**places, path: place}, {**values, path: value}) for place, value in enumerate(listed)]
                if holds(space[path], values)
                else [(places, values)]
            )
        ]
    found.sort(key=lambda one: [one[0].get(path, -1) for path in space])
    return [{path: values[path] for path in space if path in values} for _, values in found]


def _crossed(combination: Mapping[str, Any], seed: int, number: int) -> Callable[[str, Axis], Any]:
    """Draws by path, where a combination has not decided already."""

    def draw(path: str, axis: Axis) -> Any:
        return combination[path] if path in combination else axis.draw(random.Random(f"{seed}/{number}/{path}"))

    return draw


def _in_full(base: dict[str, Any]) -> dict[str, Any]:
    """With its defaults, where this version still takes it."""
    try:
        return class_for(base).model_validate(base).to_dict()
    except (UserError, ValidationError):
        return base


def _changes(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Field by field, down to where one of the two is no mapping or both are of another kind."""
    alike = isinstance(old, dict) and isinstance(new, dict) and all(old.get(key) == new.get(key) for key in SELECTORS)
    if alike:
        for key in dict.fromkeys([*old, *new]):
            yield from _changes(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old, new
