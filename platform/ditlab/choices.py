"""Choices: what was taken where an input can mean several things, said and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_LISTED = 5
"""Things not taken that a sentence lists."""


@dataclass(frozen=True)
class Choice:
    """What was taken where an input can mean several things.

    It is told to the user, printed under `--json`, and kept in the record of what was made of it.
    """

    taken: str
    """What was taken, with an article or pronoun: ``its `ema` ``."""
    skipped: tuple[str, ...] = ()
    """What was not, likewise; empty where there was nothing else."""
    reason: str = ""
    """Why; empty where the names say it."""
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
        """The choice in JSON's types."""
        return {
            "taken": self.taken,
            "skipped": list(self.skipped),
            "reason": self.reason,
            "option": self.option,
        }


def choice_sentences(choices: Sequence[Choice]) -> str:
    """Return choices in one phrase, for records and for the ends of lines."""
    return "; ".join(map(str, choices))
