"""Checks of a sweep's `space` and `fixed`: every path is a field in every trial, and every `when` can hold."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ditlab.errors import UserError, nearest
from ditlab.spec.experiment import class_for, experiment_class
from ditlab.spec.experiment_parts import all_parts
from ditlab.spec.format_value import format_value
from ditlab.spec.reading.field_paths import SELECTORS, annotation_at, options, spec_at
from ditlab.spec.reading.overrides import Assignment, assign, depth, outermost_first, value_at, with_field
from ditlab.spec.sweep.conditions import fulfilled, in_order
from ditlab.spec.sweep.spec import Sweep

# Why a field is the same in every trial.
COMMON = {
    "name": "trials are named after the sweep",
    "tracking": "all trials of a sweep are tracked in one place",
    "checkpoint.storage": "all trials of a sweep are kept in one place",
    "resources": "trials share the machine in equal parts",
}


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


@dataclass(frozen=True)
class Missing:
    """A path that leads nowhere."""

    sentence: str
    """Message for an experiment."""
    selector: str | None = None
    """`schedule.kind`, where another of its values would have the field."""
    values: tuple[str, ...] = ()
    """The values that would have it."""


def _check_path(sweep: Sweep, path: str, label: str, source: str) -> None:
    """Against every kind that trials may have above the path."""
    for chosen in _surroundings(sweep, path, label):
        known = {name: value for name, value in sweep.fixed.items() if _above(name, path)} | chosen
        assignments = [
            Assignment(name, value, f"{source}: {name}={format_value(value)}") for name, value in known.items()
        ]
        mapping = assign(sweep.base, outermost_first(assignments), class_for)
        try:
            missing = _missing(mapping, path)
        except UserError as error:  # an unknown family
            raise UserError(f"{source}: {error}") from None
        if missing is None:
            continue
        if missing.selector is None:
            raise UserError(f"{source}: {label}.{missing.sentence}")
        raise UserError(f"{source}: {label}.{path}: {missing.sentence}; {_remedy(sweep, path, label, missing)}.")


def _remedy(sweep: Sweep, path: str, label: str, missing: Missing) -> str:
    selector, values = missing.selector, list(missing.values)
    if selector in sweep.space:
        values = [value for value in values if sweep.space[selector].takes(value)]
        if not values:
            return f"no trial has a {selector} that does, so remove it"
    plain = values[0] if len(values) == 1 else f"[{', '.join(values)}]"
    when = f"`when: {{{selector}: {plain}}}`"
    if label == "space":
        if selector in sweep.space:
            return f"give the axis {when}"
        return f"set fixed.{selector} to {values[0]}, or add an axis {selector} and give this one {when}"
    if selector in sweep.space:
        return f"make it an axis of one value with {when}"
    return f"set fixed.{selector} to {values[0]} too"


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


def _missing(mapping: dict[str, Any], path: str) -> Missing | None:
    keys = path.split(".")
    cls = class_for(mapping if len(keys) < 3 else with_field(mapping, keys))
    for num_above, key in enumerate(keys):
        around = keys[:num_above]
        parent = spec_at(cls, mapping, around)
        if parent is None:
            above = ".".join(around)
            return Missing(f"{above} is a plain value and holds no '{key}'; name {above} itself.")
        if key in parent.model_fields:
            continue
        by_kind = {
            str(option.model_fields["kind"].default): option
            for option in options(annotation_at(cls, mapping, around))
            if "kind" in option.model_fields
        }
        if kinds := sorted(kind for kind, option in by_kind.items() if key in option.model_fields):
            here = value_at(mapping, [*around, "kind"]) or parent.model_fields["kind"].default
            selector = ".".join([*around, "kind"])
            # A kind that is none is a mistake of its own, said when its value is tried.
            known = str(here) in by_kind
            return Missing(f"{selector}={here} has no field '{key}'", selector, tuple(kinds)) if known else None
        others = {parts.family.name: spec_at(experiment_class(parts), {}, around) for parts in all_parts()}
        having = sorted(name for name, spec in others.items() if spec and key in spec.model_fields)
        if having:
            family = value_at(mapping, ["model", "family"])
            return Missing(
                f"model.family={family} has no field '{key if around == ['model'] else path}'",
                "model.family",
                tuple(having),
            )
        return Missing(f"{'.'.join([*around, key])} is no known field; {nearest(key, list(parent.model_fields))}")
    return None
