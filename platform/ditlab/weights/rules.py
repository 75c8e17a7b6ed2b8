"""Rules that make our tensors from those of a published network.

A pattern is a name with fields: `{n}` stands for a number, `{n+1}` for the next one, `{name}` for
any text. One rule serves all blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rule:
    """Tensors of a published network that give tensors of ours."""

    published: tuple[str, ...]
    """Patterns of their names, all with the same fields."""
    ours: str
    read: Callable[[Sequence[Tensor]], Tensor]
    """Published tensors, in the order of the patterns, to ours."""


@dataclass(frozen=True)
class Dropped:
    """Published tensor that our network has no use for."""

    published: str


@dataclass(frozen=True)
class ZeroTensor:
    """Tensor of ours that is zero in every published network."""

    ours: str


@dataclass(frozen=True)
class Kept:
    """Tensor of ours that no published network has, and that stays as the seed gives it."""

    ours: str


AnyRule = Rule | Dropped | ZeroTensor | Kept


def rename(published: str, ours: str) -> Rule:
    """Give a tensor another name."""
    return Rule((published,), ours, lambda values: values[0])


def squeeze(published: str, ours: str, num: int) -> Rule:
    """Take `num` leading axes of size 1 from a published tensor."""

    def read(values: Sequence[Tensor]) -> Tensor:
        (value,) = values
        if value.shape[:num] == (1,) * num:
            return value.flatten(0, num)
        return value

    return Rule((published,), ours, read)


def concatenate(published: Sequence[str | None], ours: str) -> Rule:
    """Join published tensors of one shape along their first axis; None is a part of zeros."""
    given = tuple(name for name in published if name is not None)

    def read(values: Sequence[Tensor]) -> Tensor:
        by_name = dict(zip(given, values, strict=True))
        zeros = torch.zeros_like(values[0])
        return torch.cat([zeros if name is None else by_name[name] for name in published])

    return Rule(given, ours, read)


@dataclass(frozen=True)
class ReadTensors:
    """Tensors of ours that the rules made of published ones."""

    tensors: dict[str, Tensor]
    unread: list[str]
    """Published tensors that no rule has read."""
    kept: list[str]
    """Tensors of ours that stay as they are, as the format has none of them."""


def read_published(rules: Sequence[AnyRule], published: Tensors, shapes: Shapes) -> ReadTensors:
    """Make our tensors from published ones; `shapes` are those of our network.

    A rule is applied where all of its published tensors are there.
    """
    found = ReadTensors({}, [], [])
    read: set[str] = set()
    for rule in rules:
        if isinstance(rule, Rule):
            for fields in _matches(rule.published[0], published):
                names = [_fill(pattern, fields) for pattern in rule.published]
                if all(name in published for name in names):
                    found.tensors[_fill(rule.ours, fields)] = rule.read(
                        [published[name] for name in names]
                    )
                    read.update(names)
        elif isinstance(rule, Dropped):
            read.update(matching(rule.published, published))
        elif isinstance(rule, Kept):
            found.kept.extend(matching(rule.ours, shapes))
        else:
            found.tensors.update(
                {name: torch.zeros(shapes[name]) for name in matching(rule.ours, shapes)}
            )
    found.unread.extend(name for name in published if name not in read)
    return found


@dataclass(frozen=True)
class Fit:
    """Tensors of a network that read ones fill, and what is left on either side."""

    values: dict[str, Tensor]
    missing: list[str] = field(default_factory=list)
    """Tensors of the network that the weights lack."""
    unread: list[str] = field(default_factory=list)
    """Tensors of the weights that the network has no place for."""
    misshapen: list[str] = field(default_factory=list)
    """Name and both shapes of tensors whose shape is another."""
    kept: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """A phrase for each tensor that does not fit."""
        return [
            *self.misshapen,
            *(f"{name} is missing" for name in self.missing),
            *(f"{name} has no place" for name in self.unread),
        ]


def fit_tensors(found: ReadTensors, shapes: Shapes) -> Fit:
    """Compare what was read with the shapes of our network."""
    fit = Fit({}, unread=list(found.unread), kept=list(found.kept))
    for name, shape in shapes.items():
        value = found.tensors.get(name)
        if value is None:
            if name not in found.kept:
                fit.missing.append(name)
        elif tuple(value.shape) != tuple(shape):
            fit.misshapen.append(
                f"{name} has shape {tuple(value.shape)}, the network's is {tuple(shape)}"
            )
        else:
            fit.values[name] = value
    fit.unread.extend(name for name in found.tensors if name not in shapes)
    return fit


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{name\}", "(?P<name>.+)")
    return re.compile(text.replace(r"\{n\+1\}", r"(?P<next>[1-9]\d*)"))


def _matches(pattern: str, names: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the fields of each name that a pattern matches."""
    for name in names:
        found = _compiled(pattern).fullmatch(name)
        if found:
            fields = found.groupdict()
            if "next" in fields:
                fields["n"] = str(int(fields.pop("next")) - 1)
            yield fields


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches."""
    return [_fill(pattern, fields) for fields in _matches(pattern, names)]


def _fill(pattern: str, fields: Mapping[str, str]) -> str:
    if "n" in fields:
        pattern = pattern.replace("{n+1}", str(int(fields["n"]) + 1))
    for key, value in fields.items():
        pattern = pattern.replace(f"{{{key}}}", value)
    return pattern
