"""Files of experiments and sweeps: their mappings, merged over those of their parents (`extends`)."""

import copy
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ditlab.errors import UserError
from ditlab.spec.format_value import format_value
from ditlab.spec.reading.overrides import merge
from ditlab.spec.reading.yaml_text import parse_yaml


def is_sweep(spec: Path | Mapping[str, Any]) -> bool:
    """Return True if a file, or its mapping, is a sweep, which has a `base`. Raises UserError for a file that cannot be
    read."""
    return "base" in (read_with_parents(spec) if isinstance(spec, Path) else spec)


def read_with_parents(path: Path) -> dict[str, Any]:
    """The file's mapping, merged over that of the file that its `extends` names, and so on up.

    A sweep's `base`, where it names a file, becomes that file's path from the working directory.
    """
    merged: dict[str, Any] = {}
    for _, mapping in reversed(_lineage(path)):
        merged = merge(merged, mapping)
    return merged


def spec_files(path: Path) -> list[Path]:
    """Every file that a spec is read from, absolute: its own, its parents', of a sweep its base's. Raises UserError
    where one cannot be read."""
    files, base = [file for file, _ in _lineage(path)], read_with_parents(path).get("base")
    return [*files, *(spec_files(Path(base)) if isinstance(base, str) else [])]


def _lineage(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """(file, absolute; its own mapping) of a file and its parents, itself first."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    current: Path | None = path
    while current is not None:
        resolved, known = current.resolve(), [file for file, _ in chain]
        if resolved in known:
            loop = " -> ".join(entry.name for entry in [*known[known.index(resolved) :], resolved])
            raise UserError(
                f"{known[-1]}: extends={current.name} closes a circle ({loop}); remove one of these `extends`."
            )
        mapping = _read(current)
        parent = mapping.pop("extends", None)
        if parent is not None and not isinstance(parent, str):
            raise UserError(f"{current}: extends={format_value(parent)} must be one file name.")
        if isinstance(mapping.get("base"), str):
            mapping["base"] = str(current.parent / mapping["base"])
        chain.append((resolved, mapping))
        if parent is not None and not (current.parent / parent).is_file():
            raise UserError(
                f"{current}: extends={parent} names no file ({current.parent / parent}); "
                "give a path relative to this file."
            )
        current = None if parent is None else current.parent / parent
    return chain


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of an experiment's YAML.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", error)
        raise UserError(f"{path}: cannot be read as text ({reason}); give the path of an experiment's YAML.") from None
    try:
        mapping = copy.deepcopy(_parsed(text))
    except UserError:
        mapping = parse_yaml(text, str(path))  # raises it again, with the file's name
    if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
        raise UserError(f"{path}: must be a mapping with names as keys, such as `name: my-run`.")
    return mapping


@lru_cache(maxsize=64)  # a command reads a spec and its parents several times over, at some 10 ms a file
def _parsed(text: str) -> Any:
    return parse_yaml(text, "")
