"""Single fields set by dotted path: `--set` on a command line, `fixed` and the values of a sweep's trials."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from denoisers.contract import Spec
from ditlab.errors import UserError
from ditlab.spec.format_value import printable
from ditlab.spec.reading.field_paths import SELECTORS, check_path, spec_at
from ditlab.spec.reading.yaml_text import parse_yaml

ClassOf = Callable[[dict[str, Any]], type[Spec]]
"""Gives the spec class that a mapping is written for."""


@dataclass(frozen=True)
class Assignment:
    """A value for one field."""

    path: str
    """Dotted: `optimizer.lr`."""
    value: Any
    source: str
    """Beginning of messages about it: `--set optimizer.lr=fast`."""

    @property
    def keys(self) -> list[str]:
        """The path's parts."""
        return self.path.split(".")


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`: mappings merge, lists replace; another `family` or `kind` replaces the whole mapping."""
    if any(key in above and key in below and above[key] != below[key] for key in SELECTORS):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def apply_overrides(mapping: dict[str, Any], overrides: Sequence[str], class_of: ClassOf) -> dict[str, Any]:
    """`model.depth=9` and the like, in turn. The value is YAML: `null`, `[0.9, 0.99]`, `{kind: norm}` all work.

    Raises UserError for a path that leads nowhere, and for a change of kind that undoes an earlier override.
    """
    return assign(mapping, parse_overrides(overrides), class_of)


def parse_overrides(overrides: Sequence[str]) -> Iterator[Assignment]:
    """The text of `--set`, one by one. Raises UserError for what is no path and value."""
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        source = f"--set {printable(override if len(override) <= 80 else override[:60] + '...')}"
        if not equals or not all(path.split(".")) or not path.isprintable():
            raise UserError(f"{source}: write a dotted path and a value, such as --set optimizer.lr=1e-4.")
        yield Assignment(path, parse_yaml(text, source), source)


def depth(path: str) -> tuple[int, bool]:
    """Sorts paths so that none undoes another: a mapping before its kind, its kind before its other fields."""
    keys = path.split(".")
    selector = keys[-1] in SELECTORS
    return len(keys) - selector, selector


def outermost_first(assignments: Iterable[Assignment]) -> list[Assignment]:
    """Return the assignments sorted by `depth`, otherwise as given."""
    return sorted(assignments, key=lambda assignment: depth(assignment.path))


def assign(
    mapping: dict[str, Any],
    assignments: Iterable[Assignment],
    class_of: ClassOf,
) -> dict[str, Any]:
    """The mapping with each field set in turn; `class_of` gives the spec class that a mapping is written for.

    Raises UserError for a path that leads nowhere, and for a change of kind that undoes an earlier assignment.
    """
    done: list[Assignment] = []
    for assignment in assignments:
        keys, value = assignment.keys, assignment.value
        mapping = _with_default_kinds(mapping, assignment, class_of)
        if keys[-1] in SELECTORS and value_at(mapping, keys) != value:
            for earlier in done:
                if earlier.keys[:-1] == keys[:-1] and earlier.keys[-1] not in SELECTORS:
                    raise UserError(
                        f"{assignment.source} would undo {earlier.source}, given before it; give {assignment.path} "
                        "first."
                    )
        mapping = merge(mapping, nested(keys, value))
        done.append(assignment)
    return mapping


def nested(keys: Sequence[str], value: Any) -> Any:
    """A value under its path: `{optimizer: {lr: 0.1}}`."""
    for key in reversed(keys):
        value = {key: value}
    return value


def value_at(mapping: Any, keys: Sequence[str]) -> Any:
    """Return the value at a path, None where there is none."""
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping


def with_field(mapping: dict[str, Any], keys: Sequence[str], value: Any = None) -> dict[str, Any]:
    """Return the mapping with a value at a path where it has none: the spec class of some mappings depends on the names
    of the fields that they have (loss components of other packages)."""
    return mapping if value_at(mapping, keys) is not None else merge(mapping, nested(keys, value))


def _with_default_kinds(mapping: dict[str, Any], assignment: Assignment, class_of: ClassOf) -> dict[str, Any]:
    """Return the mapping with the default kinds of the mappings around a field that an assignment sets, where a file
    leaves them out: the field would belong to no kind. Raises UserError for a path that leads nowhere."""
    keys = assignment.keys
    try:
        cls = class_of(with_field(mapping, keys, assignment.value))
    except UserError:
        return mapping  # reported later, for the whole experiment
    check_path(cls, mapping, keys, assignment.source)
    for depth in range(1, len(keys)):
        spec = spec_at(cls, mapping, keys[:depth])
        if value_at(mapping, keys[:depth]) is None and spec and "kind" in spec.model_fields:
            mapping = merge(mapping, nested(keys[:depth], {"kind": spec.model_fields["kind"].default}))
    return mapping
