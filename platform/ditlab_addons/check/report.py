"""Reports of checks: what was compared and what came of it, as tables of a terminal, as plain text
and as JSON.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

COLUMNS = 80
"""Width of a report as plain text."""
STYLES = {"holds": "green", "off": "bold red", "not checked": "yellow"}
"""Style of each verdict."""


class Report(ABC):
    """Findings of a check."""

    @property
    @abstractmethod
    def holds(self) -> bool:
        """True if nothing is off."""

    @abstractmethod
    def shown(self) -> Iterator[RenderableType]:
        """Yield sentences and tables for a terminal."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the report in JSON's types."""

    def __str__(self) -> str:
        console = Console(width=COLUMNS, file=StringIO(), highlight=False, markup=False)
        with console.capture() as captured:
            for each in self.shown():
                console.print(each)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())


def styled(verdict: str) -> Text:
    """Return a verdict for a table."""
    return Text(verdict, STYLES[verdict])


def as_verdict(holds: bool) -> Text:
    """Return the verdict on one comparison."""
    return styled("holds" if holds else "off")


def shown_number(value: float | str | None) -> str:
    """Return a number to nine digits, as many as float32 has; a word for none, a text as it
    is.
    """
    if isinstance(value, str):
        return value
    return "none" if value is None else f"{value:.9g}"
