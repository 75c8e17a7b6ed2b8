"""Selections: one of several readings of an input is taken, which is said and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_LISTED = 5
"""Things not taken that a sentence lists."""


@dataclass(frozen=True)
class Selection:
    """One of several things that an input can mean, and the others.

    It is told to the user, printed under `--json`, and kept in the record of what was made of it.
    """

    taken: str
    """The one that was taken, with an article or pronoun: ``its `ema` ``."""
    skipped: tuple[str, ...] = ()
    """The others, likewise; empty where there was nothing else."""
    reason: str = ""
    """Reason; empty where the names say it."""
    option: str = ""
    """Option or field that chooses otherwise: `model.init.weights`."""

    def __str__(self) -> str:
        phrase = self.taken
        if self.skipped:
            phrase += f", not {', '.join(self.skipped[:MOST_LISTED])}"
        if len(self.skipped) > MOST_LISTED:
            phrase += f" and {len(self.skipped) - MOST_LISTED} more"
        if self.reason:
            phrase += f" ({self.reason})"
        if self.option and self.skipped:
            phrase += f"; {self.option} chooses"
        return phrase

    def to_dict(self) -> dict[str, Any]:
        """The selection in JSON's types."""
        return {
            "taken": self.taken,
            "skipped": list(self.skipped),
            "reason": self.reason,
            "option": self.option,
        }


def selection_sentences(selections: Sequence[Selection]) -> str:
    """Return selections in one phrase, for records and for the ends of lines."""
    return "; ".join(map(str, selections))
