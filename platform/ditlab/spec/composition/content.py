"""Fields that count in an experiment's content hash."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

LATER_SECTIONS: dict[str, Any] = {"encoders": {}, "start": None}
"""Sections that came after the first runs, with the content under which a run is what it was without them."""
LATER: dict[str, Any] = {"packing": "joined", "order": {"kind": "full"}}
"""Fields of `data` that came after the first runs, with the value under which a run is what it was without them."""
PLACES = ("access", "cache")
"""Fields of `kind: arrow` that say how rows are read, which changes no number."""


def without_defaults(section: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of a section without later fields that have the value of a run without them."""
    return {key: value for key, value in section.items() if key not in later or later[key] != value}


def content_of_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of `data`, parts of a mixture included, without later fields that change nothing."""
    kept = without_defaults(data, LATER)
    if kept.get("kind") == "arrow":
        kept = {key: value for key, value in kept.items() if key not in PLACES}
    if isinstance(parts := kept.get("parts"), Mapping):
        kept["parts"] = {name: content_of_data(part) for name, part in parts.items()}
    return kept


def digest_of(content: Mapping[str, Any]) -> str:
    """Return 16 hex digits over plain values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
