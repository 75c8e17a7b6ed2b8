"""Fields of `data` that count in an experiment's content hash."""

from collections.abc import Mapping
from typing import Any

LATER = {"packing": "joined"}
"""Fields that came after the first runs, with the value under which a run is what it was without them."""


def content_of_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of `data`, parts of a mixture included, without later fields that change nothing."""
    kept = {key: value for key, value in data.items() if key not in LATER or LATER[key] != value}
    if isinstance(parts := kept.get("parts"), Mapping):
        kept["parts"] = {name: content_of_data(part) for name, part in parts.items()}
    return kept
