"""Changed fields of a finished run: its sampling settings and the places of its encoders."""

from collections.abc import Mapping, Sequence
from typing import Any

from ditlab.errors import UserError
from ditlab.spec.reading.overrides import Assignment, parse_overrides

SECTIONS = ("sampling", "encoders")
"""Sections of an experiment that may change after training: encoders may lie elsewhere than where the run trained."""


def sampling_changes(given: Mapping[str, Any], overrides: Sequence[str]) -> list[Assignment]:
    """Assignments for `given`, values by field of `sampling` (None: unchanged), and for `--set` texts, `overrides`.

    Raises UserError for an override of anything else.
    """
    changes = [
        Assignment(f"sampling.{name}", value, f"--{name} {value}") for name, value in given.items() if value is not None
    ]
    for change in parse_overrides(overrides):
        if change.keys[0] not in SECTIONS or len(change.keys) < 2:
            raise UserError(
                f"{change.source}: a finished run takes sampling settings and other places of its encoders alone; "
                "write --set sampling.KEY=VALUE or --set encoders.KEY=VALUE."
            )
        changes.append(change)
    return changes
