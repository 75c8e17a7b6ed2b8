"""Fields of `data` that count in an experiment's content hash."""

from collections.abc import Mapping
from typing import Any

LATER: dict[str, Any] = {"packing": "joined", "order": {"kind": "full"}}
"""Fields that came after the first runs, with the value under which a run is what it was without them."""
PLACES = ("access", "cache")
"""Fields of `kind: arrow` that say how rows are read, which changes no number."""


def content_of_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of `data`, parts of a mixture included, without later fields that change nothing."""
    kept = {key: value for key, value in data.items() if key not in LATER or LATER[key] != value}
    if kept.get("kind") == "arrow":
        kept = {key: value for key, value in kept.items() if key not in PLACES}
    if isinstance(parts := kept.get("parts"), Mapping):
        kept["parts"] = {name: content_of_data(part) for name, part in parts.items()}
    return kept
