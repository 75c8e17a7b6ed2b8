"""From files to an experiment: `extends`, `--set`, validation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment, class_for
from ditlab.spec.messages import explain
from ditlab.spec.paths import SELECTORS, check_path, spec_at
from ditlab.spec.wording import shown
from ditlab.spec.yaml_text import parse_yaml


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and its parents describe, with `--set` overrides (`a.b=value`) on top.

    Raises UserError, naming file and knob, for anything wrong in them.
    """
    return build_experiment(apply_overrides(read_with_parents(path), overrides), str(path))


def build_experiment(mapping: Mapping[str, Any], source: str) -> Experiment:
    """Validates a resolved mapping. Raises UserError with one line per mistake, each beginning with `source`."""
    if "base" in mapping:
        raise UserError(
            f"{source}: a file with `base` is a sweep, and sweeps are not available yet; name an experiment."
        )
    try:
        cls = class_for(mapping)
        return cls.model_validate(dict(mapping))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in explain(error, cls, mapping))) from None


def read_with_parents(path: Path) -> dict[str, Any]:
    """The file's mapping, merged over that of the file that its `extends` names, and so on up."""
    chain: list[Path] = []
    mappings: list[dict[str, Any]] = []
    current: Path | None = path
    while current is not None:
        resolved = current.resolve()
        if resolved in chain:
            loop = " -> ".join(str(entry.name) for entry in [*chain[chain.index(resolved) :], resolved])
            raise UserError(
                f"{chain[-1]}: extends={current.name} closes a circle ({loop}); remove one of these `extends`."
            )
        chain.append(resolved)
        mapping = _read(current)
        parent = mapping.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise UserError(f"{current}: extends={shown(parent)} must be one file name.")
        mappings.append(mapping)
        if parent is not None and not (current.parent / parent).is_file():
            raise UserError(
                f"{current}: extends={parent} names no file ({current.parent / parent}); "
                "give a path relative to this file."
            )
        current = None if parent is None else current.parent / parent
    merged: dict[str, Any] = {}
    for mapping in reversed(mappings):
        merged = merge(merged, mapping)
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of an experiment's YAML.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", error)
        raise UserError(f"{path}: cannot be read as text ({reason}); give the path of an experiment's YAML.") from None
    mapping = parse_yaml(text, str(path))
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise UserError(f"{path}: must be a mapping with names as keys, such as `name: my-run`.")
    return mapping


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`: mappings merge, lists replace; another `family` or `kind` replaces the whole mapping."""
    if any(key in above and key in below and above[key] != below[key] for key in SELECTORS):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def apply_overrides(mapping: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`model.depth=9` and the like, in turn. The value is YAML: `null`, `[0.9, 0.99]`, `{kind: norm}` all work.

    Raises UserError for a path that leads nowhere, and for a change of kind that undoes an earlier override.
    """
    done: list[tuple[list[str], str]] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        source = f"--set {override if len(override) <= 80 else override[:60] + '...'}"
        if not equals or not all(keys):
            raise UserError(f"{source}: write a dotted path and a value, such as --set optimizer.lr=1e-4.")
        value = parse_yaml(text, source)
        mapping = _with_default_kinds(mapping, keys, source)
        if keys[-1] in SELECTORS and _get(mapping, keys) != value:
            for earlier, said in done:
                if earlier[:-1] == keys[:-1] and earlier[-1] not in SELECTORS:
                    raise UserError(f"{source} would undo {said}, given before it; give {path} first.")
        for key in reversed(keys):
            value = {key: value}
        mapping = merge(mapping, value)
        done.append((keys, source))
    return mapping


def _with_default_kinds(mapping: dict[str, Any], keys: Sequence[str], source: str) -> dict[str, Any]:
    """What an override goes into, where a file leaves it to its default: that default's kind, or the override's other
    fields would belong to no kind. Checks the path on the way."""
    try:
        cls = class_for(mapping)
    except UserError:
        return mapping  # said later, of the whole experiment
    check_path(cls, mapping, keys, source)
    for depth in range(1, len(keys)):
        spec = spec_at(cls, mapping, keys[:depth])
        if _get(mapping, keys[:depth]) is None and spec and "kind" in spec.model_fields:
            kind: dict[str, Any] = {"kind": spec.model_fields["kind"].default}
            for key in reversed(keys[:depth]):
                kind = {key: kind}
            mapping = merge(mapping, kind)
    return mapping


def _get(mapping: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        mapping = mapping.get(key) if isinstance(mapping, Mapping) else None
    return mapping
