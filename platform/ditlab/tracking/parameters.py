"""A spec as flat parameters. Imports no mlflow."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def flatten(spec: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a spec to texts by dotted name: `{"model": {"depth": 9}}` gives `{"model.depth": "9"}`.

    Lists of plain values stay one parameter (`[0.9, 0.999]`), lists that hold mappings are numbered. Strings stand as
    they are, everything else as JSON writes it (`null`, `true`, `1e-05`), so a parameter reads as in the YAML.
    """
    return dict(_walk(spec, ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else str(key))
    elif _is_list(value) and any(isinstance(inner, Mapping) for inner in value):
        for index, inner in enumerate(value):
            yield from _walk(inner, f"{path}.{index}")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value, default=str)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def as_count(text: str) -> int | None:
    """Return the whole number that a parameter or tag is; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
