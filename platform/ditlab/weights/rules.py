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
class Computed:
    """Published tensor that our network computes: it must hold what is computed."""

    published: str
    expected: Callable[[tuple[int, ...]], Tensor]
    """Its values from its shape. Raises ValueError for a shape that none has."""


@dataclass(frozen=True)
class ZeroTensor:
    """Tensor of ours that is zero in every published network."""

    ours: str


@dataclass(frozen=True)
class Kept:
    """Tensor of ours that no published network has, and that stays as the seed gives it."""

    ours: str


AnyRule = Rule | Computed | ZeroTensor | Kept


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
    unmade: list[str]
    """Tensors of ours whose rule could not read the published ones."""
    problems: list[str]
    """A phrase for each published tensor that its rule cannot read, or that is other than
    computed.
    """


def read_published(rules: Sequence[AnyRule], published: Tensors, shapes: Shapes) -> ReadTensors:
    """Make our tensors from published ones; `shapes` are those of our network.

    A rule is applied where all of its published tensors are there.
    """
    found = ReadTensors({}, [], [], [], [])
    read: set[str] = set()
    for rule in rules:
        if isinstance(rule, Rule):
            for fields in _matches(rule.published[0], published):
                names = [_fill(pattern, fields) for pattern in rule.published]
                if all(name in published for name in names):
                    _read_rule(rule, fields, names, published, found)
                    read.update(names)
        elif isinstance(rule, Computed):
            for name in matching(rule.published, published):
                found.problems.extend(_differences(name, published[name], rule))
                read.add(name)
        elif isinstance(rule, Kept):
            found.kept.extend(matching(rule.ours, shapes))
        else:
            found.tensors.update(
                {name: torch.zeros(shapes[name]) for name in matching(rule.ours, shapes)}
            )
    found.unread.extend(name for name in published if name not in read)
    return found


def _read_rule(
    rule: Rule,
    fields: Mapping[str, str],
    names: Sequence[str],
    published: Tensors,
    found: ReadTensors,
) -> None:
    """Make a tensor of ours, or note that the published ones' shapes do not allow it."""
    values = [published[name] for name in names]
    ours = _fill(rule.ours, fields)
    shapes = {tuple(each.shape) for each in values}
    kinds = {each.is_floating_point() for each in values}
    if kinds == {False, True} or any(each.is_complex() for each in values):
        dtypes = sorted({str(each.dtype).removeprefix("torch.") for each in values})
        found.problems.append(f"{', '.join(names)} have numbers of {', '.join(dtypes)}")
        found.unmade.append(ours)
        return
    try:
        found.tensors[ours] = rule.read(values)
    except (RuntimeError, ValueError, IndexError):
        found.problems.append(
            f"{', '.join(names)} cannot become {ours} with the shapes "
            f"{', '.join(map(str, sorted(shapes)))}"
        )
        found.unmade.append(ours)


def _differences(name: str, value: Tensor, rule: Computed) -> list[str]:
    """Return a phrase where a published tensor is other than our network computes; [] where not."""
    if value.is_meta:
        return []
    try:
        expected = rule.expected(tuple(value.shape))
    except ValueError as error:
        return [f"{name} has shape {tuple(value.shape)}, and {error}"]
    if not value.numel():
        return [f"{name} is empty"]
    if not value.is_floating_point():
        return [f"{name} has numbers of {str(value.dtype).removeprefix('torch.')}"]
    # A published table is of float32 sines, and was perhaps rounded to the file's type.
    tolerance = 1e-4 + torch.finfo(value.dtype).eps
    difference = (value.double() - expected.double()).abs().max().item()
    if difference <= tolerance:
        return []
    return [f"{name} differs by up to {difference:.3g} from the table that the network computes"]


@dataclass(frozen=True)
class Fit:
    """Tensors of a network that read ones fill, and what is left on either side."""

    values: dict[str, Tensor]
    missing: list[str] = field(default_factory=list)
    """Tensors of the network that the weights lack."""
    unread: list[str] = field(default_factory=list)
    """Tensors of the weights that the network has no place for."""
    unfit: list[str] = field(default_factory=list)
    """A phrase for each tensor whose shape, type or values are none of the network's."""
    kept: list[str] = field(default_factory=list)
    """Tensors of the network that the format lacks, and that stay as the seed gives them."""
    rounded: list[str] = field(default_factory=list)
    """Tensors of the weights with float64 numbers that float32 rounds."""

    @property
    def problems(self) -> list[str]:
        """A phrase for each tensor that does not fit."""
        return [
            *self.unfit,
            *(f"{name} is missing" for name in self.missing),
            *(f"{name} has no place" for name in self.unread),
        ]


def fit_tensors(found: ReadTensors, network: Tensors) -> Fit:
    """Compare what was read with the tensors of our network, which may lie on the meta device."""
    fit = Fit({}, unread=list(found.unread), unfit=list(found.problems), kept=list(found.kept))
    for name, own in network.items():
        value = found.tensors.get(name)
        if value is None:
            if name not in found.kept and name not in found.unmade:
                fit.missing.append(name)
            continue
        problem = _misfit(value, own)
        if problem:
            fit.unfit.append(f"{name} {problem}")
        else:
            fit.values[name] = value
    fit.unread.extend(name for name in found.tensors if name not in network)
    return fit


def _misfit(value: Tensor, own: Tensor) -> str:
    """Return what a tensor of the network cannot take of a value; empty where it takes it whole."""
    if value.shape != own.shape:
        return f"has shape {tuple(value.shape)}, the network's is {tuple(own.shape)}"
    if value.is_floating_point() != own.is_floating_point() or value.is_complex():
        kind = str(value.dtype).removeprefix("torch.")
        wanted = str(own.dtype).removeprefix("torch.")
        return f"has numbers of {kind}, the network's are {wanted}"
    if value.is_meta or not own.is_floating_point():
        return ""
    # Numbers beyond float32's range become infinite there.
    num = value.numel() - int(value.float().isfinite().sum())
    if num:
        return f"has {num:,} of {value.numel():,} numbers that are NaN or infinite in float32"
    return ""


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
