"""Records of what definitions use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel

from ditlab.flattening.constants import UNKNOWN
from ditlab.flattening.sources import Imported


class Unit(NamedTuple):
    """A definition of a module, or with `member` one of a class."""

    module: str
    name: str
    member: str = ""


def field_key(spec: BaseModel, name: str) -> str:
    """Return the name under which a field of a spec is known to be read."""
    return f"{type(spec).__name__}.{name}"


@dataclass(frozen=True)
class Call:
    """A call of a definition, or of a method by its name; "" for one of a local name."""

    unit: Unit | None
    method: str
    positional: tuple[Any, ...] | None
    """Value of each positional argument, as far as it is known; None: some are starred."""
    keywords: Mapping[str, Any]
    """Value by keyword; `**` for a mapping."""


@dataclass
class Uses:
    """Uses of a unit, found by one reading of it."""

    units: set[Unit] = field(default_factory=set)
    """Definitions named."""
    annotated: set[Unit] = field(default_factory=set)
    """Definitions named in annotations."""
    imports: set[Imported] = field(default_factory=set)
    """Names of libraries."""
    read: set[str] = field(default_factory=set)
    """Attributes read, by name."""
    stored: set[str] = field(default_factory=set)
    """Attributes of `self` that are assigned a value that has no effect of its own."""
    calls: list[Call] = field(default_factory=list)
    values: set[Unit] = field(default_factory=set)
    """Definitions named otherwise than to call them."""
    method_values: set[str] = field(default_factory=set)
    """Attributes read otherwise than to call them."""
    local_reads: set[str] = field(default_factory=set)
    """Local names that are read."""
    held: dict[str, set[Unit | None]] = field(default_factory=dict)
    """Classes of which attributes of `self` are made, by attribute; None: something else."""
    unread: frozenset[str] = frozenset()
    """Variables that are assigned and not read."""
    identity: int | None = None
    """Number of the parameter that it returns as it is, if it does nothing else."""
    result: Any = UNKNOWN
    """The value that it always returns, if it does nothing else."""


@dataclass(frozen=True)
class Cuts:
    """Findings of earlier readings: names of no use, and those that have one value."""

    attributes: frozenset[str] = frozenset()
    """Attributes that nobody reads."""
    constants: Mapping[Unit, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters that have the same value in every call, by function."""
    parameters: Mapping[Unit, frozenset[str]] = field(default_factory=dict)
    """Parameters that a function never reads."""
    results: Mapping[Unit, Any] = field(default_factory=dict)
    """Value of a function that always returns the same."""
    identities: Mapping[Unit, int] = field(default_factory=dict)
    """Functions that only return one of their parameters, by its number."""
    variables: Mapping[Unit, frozenset[str]] = field(default_factory=dict)
    """Variables that nobody reads, by function."""
    held: Mapping[str, frozenset[Unit | None]] = field(default_factory=dict)
    """Classes of which each attribute holds objects; None among them: others."""
    live: frozenset[Unit] | None = None
    """Classes that code names, not annotations alone; None: not known yet."""
    named: frozenset[Unit] = frozenset()
    """Definitions that are named otherwise than to call them."""
    empty: frozenset[Unit] = frozenset()
    """Classes of which no member is left."""
