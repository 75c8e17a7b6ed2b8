"""Absolute paths below a home's former places, mapped to its present one. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

_FORM = re.compile(r"(?P<scheme>file://|sqlite(?:\+\w+)?:///)?(?P<path>/.*)", re.DOTALL)


@dataclass(frozen=True)
class PathMap:
    """Mapping of paths and addresses (`/`, `file:///`, `sqlite:////`...) from former places to the present one."""

    former: tuple[Path, ...]
    present: Path

    def relocated(self, text: str) -> str | None:
        """The path or address at the present place; None for one that lies at no former place.

        Of places that lie in each other, the innermost one counts.
        """
        form = _FORM.fullmatch(text)
        if form is None:
            return None
        scheme = form["scheme"] or ""
        is_quoted = scheme == "file://"
        path = unquote(form["path"]) if is_quoted else form["path"]
        inside = [place for place in (*self.former, self.present) if _is_below(path, str(place))]
        innermost = max(inside, key=lambda place: len(str(place)), default=self.present)
        if innermost == self.present:
            return None
        moved = str(self.present) + path[len(str(innermost)) :]
        return scheme + (quote(moved) if is_quoted else moved)

    def relocated_value(self, value: Any) -> Any:
        """A value of JSON or YAML with every text in it mapped, keys of mappings as they are."""
        if isinstance(value, str):
            moved = self.relocated(value)
            return value if moved is None else moved
        if isinstance(value, dict):
            return {key: self.relocated_value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.relocated_value(item) for item in value]
        return value


def found_paths(value: Any, path_map: PathMap) -> Iterable[str]:
    """Texts in a value of JSON or YAML that lie at a former place."""
    if isinstance(value, str):
        if path_map.relocated(value) is not None:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from found_paths(item, path_map)
    elif isinstance(value, list):
        for item in value:
            yield from found_paths(item, path_map)


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")
