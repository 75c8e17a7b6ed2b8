"""Axes of a sweep: the values that a field of the experiment takes in its trials, and conditions on
them (`when`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from ditlab.spec.optimization import Count, Positive
from ditlab.spec.values import format_value
from ditlab_models.contract import Spec

Whole = Annotated[int, Field(ge=-(10**12), le=10**12)]
Values = Annotated[tuple[Any, ...], Field(strict=False)]
When = Annotated[
    dict[str, Any],
    Field(
        description=(
            "Other axes by path, and the value (or list of values) of each under which this "
            "axis exists."
        )
    ),
]


class AxisSpec(Spec):
    """Base of the axes."""

    def listed(self) -> Sequence[Any] | None:
        """Every value in order; None where there is no end of them."""
        return None

    def ends(self) -> Sequence[Any]:
        """The values to try an axis by: both ends of a range, every value of a list."""
        return self.listed() or ()

    def draw(self, rng: random.Random) -> Any:
        """One value. Uses `rng.random()` alone, whose numbers Python keeps the same from version to
        version.
        """
        values = self.listed()
        assert values is not None, "an axis without a list draws by itself"
        return values[min(len(values) - 1, int(rng.random() * len(values)))]

    def takes(self, value: Any) -> bool:
        """Return True if this is one of the axis's values; never so for a continuous axis."""
        values = self.listed() or ()
        if isinstance(values, range):  # without walking it
            return isinstance(value, int) and not isinstance(value, bool) and value in values
        return any(same(value, known) for known in values)


class RangeAxis(AxisSpec):
    """Base of the axes with two ends."""

    kind: str
    low: float
    """Smallest value."""
    high: float
    """Largest value."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                "low must be below high; swap them, or write the one value under `fixed`."
            )
        return self

    def ends(self) -> Sequence[float]:
        """Both ends."""
        return (self.low, self.high)


class Uniform(RangeAxis):
    """Any number of a range, each as likely."""

    kind: Literal["uniform"] = "uniform"
    """A range of numbers, drawn evenly."""
    when: When = Field(default_factory=dict)

    def draw(self, rng: random.Random) -> float:
        """U[low, high]."""
        return min(self.high, self.low + (self.high - self.low) * rng.random())


class LogUniform(RangeAxis):
    """Any number of a range, each order of magnitude as likely."""

    kind: Literal["loguniform"] = "loguniform"
    """A range of numbers above 0, drawn evenly in their logarithm: learning rates, weights."""
    low: Positive
    """Smallest value, above 0."""
    high: Positive
    """Largest value."""
    when: When = Field(default_factory=dict)

    def draw(self, rng: random.Random) -> float:
        """exp of U[log low, log high]."""
        low = math.log(self.low)
        high = math.log(self.high)
        return min(self.high, max(self.low, math.exp(low + (high - low) * rng.random())))


class Integer(RangeAxis):
    """Any whole number of a range, each as likely, both ends included."""

    kind: Literal["int"] = "int"
    """A range of whole numbers, drawn evenly; a grid takes all of them."""
    low: Whole
    """Smallest value."""
    high: Whole
    """Largest value, a whole number of steps above `low`."""
    step: Count = 1
    """Distance between neighbouring values."""
    when: When = Field(default_factory=dict)

    @model_validator(mode="after")
    def _end_is_reached(self) -> Self:
        over = (self.high - self.low) % self.step
        if over:
            if self.high - over > self.low:
                remedy = f"set high to {self.high - over}"
            else:
                remedy = "lower step"
            raise ValueError(f"high is no whole number of steps above low; {remedy}.")
        return self

    def listed(self) -> range:
        """From low to high."""
        return range(self.low, self.high + 1, self.step)


class ListAxis(AxisSpec):
    """Base of the axes whose values are written out. Subclasses add `kind: Literal[NAME] =
    NAME`.
    """

    kind: str
    values: Values
    """The values, of any type that the field takes: numbers, words, null, whole mappings."""
    when: When = Field(default_factory=dict)

    @field_validator("values")
    @classmethod
    def _some_and_distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            raise ValueError("there is no value in it; give at least one.")
        for one, other in itertools.combinations(values, 2):
            if same(one, other):
                raise ValueError(f"{format_value(other)} is in it twice; keep one of the two.")
        return values

    def listed(self) -> Sequence[Any]:
        """As written."""
        return self.values


class Choice(ListAxis):
    """One of some values, each as likely."""

    kind: Literal["choice"] = "choice"
    """Drawn from a list; a grid takes all of it."""


class Grid(ListAxis):
    """Every one of some values: random search crosses them with its draws, so each is tried on the
    same draws.
    """

    kind: Literal["grid"] = "grid"
    """All of a list, also in random search. Optuna, which has no grid, draws from it as from
    `choice`.
    """


Axis = Annotated[Uniform | LogUniform | Integer | Choice | Grid, Field(discriminator="kind")]


def same(one: Any, other: Any) -> bool:
    """Equality as YAML means it, where `true` is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def holds(axis: Axis, values: Mapping[str, Any]) -> bool:
    """Return True if an axis exists in a trial, by the values of the axes that its `when` names."""
    for path, condition in axis.when.items():
        alternatives = [condition, *(condition if isinstance(condition, list) else ())]
        if path not in values or not any(same(values[path], one) for one in alternatives):
            return False
    return True


def in_order(space: Mapping[str, Axis]) -> list[str]:
    """Paths in the file's order, save that an axis comes after those that its `when` names. What
    stands in a circle, or waits for what is no axis, is dropped."""
    order: list[str] = []
    waiting = list(space)
    while ready := next(
        (path for path in waiting if all(name in order for name in space[path].when)), None
    ):
        order.append(ready)
        waiting.remove(ready)
    return order


def asked_values(axis: Axis, condition: Any) -> list[Any]:
    """The values that a condition on an axis asks for: the value itself, or those of a list."""
    if isinstance(condition, list) and not axis.takes(condition):
        return condition
    return [condition]


def fulfilled(space: Mapping[str, Axis], path: str) -> dict[str, list[Any]]:
    """Return the values of other axes under which one exists, by path, through every `when`; []
    where it never does.
    """
    found: dict[str, list[Any]] = {}
    for name, condition in space[path].when.items():
        own = [value for value in asked_values(space[name], condition) if space[name].takes(value)]
        for other, values in {**fulfilled(space, name), name: own}.items():
            known = found.get(other, values)
            found[other] = [value for value in values if any(same(value, one) for one in known)]
    return found


def combinations(space: Mapping[str, Axis], most: int) -> list[dict[str, Any]]:
    """The first `most` of the combinations of the axes' values, in the order of
    `enumerate_trials`.
    """
    values = {path: axis.listed() or () for path, axis in space.items()}

    def chosen(found: Mapping[str, int]) -> dict[str, Any]:
        return {path: values[path][found[path]] for path in space if path in found}

    def extended(found: dict[str, int], paths: Sequence[str]) -> Iterator[dict[str, int]]:
        if not paths:
            yield found
        elif holds(space[paths[0]], chosen(found)):
            for place in range(len(values[paths[0]])):
                yield from extended({**found, paths[0]: place}, paths[1:])
        else:
            yield from extended(found, paths[1:])

    found = itertools.islice(extended({}, in_order(space)), most)
    return [
        chosen(one) for one in sorted(found, key=lambda one: [one.get(path, -1) for path in space])
    ]
