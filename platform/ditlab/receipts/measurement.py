"""Digests of what figures are measured with: equal for two figures of one name that are the same measurement."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN = 12
"""Digits of a digest that people are shown, and that tags hold of each part."""
TAG_PREFIX = "ditlab.measurement."
"""Tag of the measurement behind a group of figures: `ditlab.measurement.eval`."""
EVALUATION_TAG = "ditlab.evaluation"
"""Tag with the digest of the last evaluation: of its measurements, the spec and the weights."""
EVALUATED_STEP_TAG = "ditlab.evaluation.step"
"""Tag with the step of the weights that the last evaluation measured."""


@dataclass(frozen=True)
class Measurement:
    """Everything that figures are measured with, apart from the network that is measured."""

    digest: str
    """SHA-256 over all parts, in hexadecimal."""
    parts: Mapping[str, str]
    """Digest of each part by its name (`held-out samples`, `sampler`), or its first digits."""

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> "Measurement":
        """Return a measurement with these parts, values of JSON's types."""
        found = {name: _digest(value) for name, value in sorted(parts.items())}
        return cls(_digest(found), found)

    @classmethod
    def parse(cls, tag: str) -> "Measurement | None":
        """Return the measurement that `to_tag` wrote; None for another text."""
        try:
            record = json.loads(tag)
            digest, parts = record["digest"], record["parts"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        is_one = isinstance(digest, str) and isinstance(parts, dict) and all(isinstance(v, str) for v in parts.values())
        return cls(digest, parts) if is_one else None

    def to_tag(self) -> str:
        """Return the digest, and the first digits of its parts', as a tag's value."""
        return json.dumps({"digest": self.digest, "parts": {name: text[:SHOWN] for name, text in self.parts.items()}})

    def to_dict(self) -> dict[str, object]:
        """The measurement in JSON's types."""
        return {"digest": self.digest, "parts": dict(self.parts)}

    @property
    def shown(self) -> str:
        """The digest's first digits."""
        return self.digest[:SHOWN]


def differing_parts(measurements: Iterable[Measurement]) -> list[str]:
    """Return the names of the parts in which measurements differ, sorted."""
    known = list(measurements)
    names = sorted({name for each in known for name in each.parts})
    return [name for name in names if len({each.parts.get(name, "")[:SHOWN] for each in known}) > 1]


def evaluation_digest(measurements: Mapping[str, Measurement], spec_hash: str, weights: str) -> str:
    """Return the digest of an evaluation: of its measurements by group, of the spec, and of `weights`, a digest."""
    return _digest([{name: each.digest for name, each in measurements.items()}, spec_hash, weights])


def measurement_tags(measurements: Mapping[str, Measurement]) -> dict[str, str]:
    """Return the tags of measurements by group of figures."""
    return {f"{TAG_PREFIX}{group}": each.to_tag() for group, each in measurements.items()}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
