"""Table of metrics by average, which stays readable however many averages there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

FRAME = 3
"""Characters that a column takes beside its text."""


@dataclass(frozen=True)
class AverageColumn:
    """Column of one average."""

    head: str
    notes: Sequence[str]
    """Texts above the metrics, one for each of the table's `notes`."""
    metrics: Sequence[str]
    """Values, one for each of the table's `metrics`; "" where there is none."""

    @property
    def width(self) -> int:
        """Characters that the column takes."""
        return max(map(len, (self.head, *self.notes, *self.metrics))) + FRAME


@dataclass(frozen=True)
class FrontierTable:
    """Columns of averages side by side; those that do not fit into the terminal follow in further tables."""

    notes: Sequence[str]
    """Heads of the rows above the metrics."""
    metrics: Sequence[str]
    """Names of the metrics."""
    columns: Sequence[AverageColumn]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw as many tables as the width takes."""
        yield from (self._table(columns) for columns in self._blocks(options.max_width))

    def _blocks(self, width: int) -> Iterator[list[AverageColumn]]:
        """Yield the columns of one table after another, at least one in each."""
        left = width - max(map(len, ("metric", *self.notes, *self.metrics))) - FRAME - 1
        block: list[AverageColumn] = []
        for column in self.columns:
            if block and sum(each.width for each in (*block, column)) > left:
                yield block
                block = []
            block.append(column)
        yield block

    def _table(self, columns: Sequence[AverageColumn]) -> Table:
        table = Table("metric", *(column.head for column in columns))
        for shown in table.columns:
            shown.no_wrap = True
        for shown in table.columns[1:]:
            shown.justify = "right"
        for index, head in enumerate(self.notes):
            if any(texts := [column.notes[index] for column in columns]):
                table.add_row(head, *texts)
        table.add_section()
        for index, name in enumerate(self.metrics):
            table.add_row(name, *(column.metrics[index] for column in columns))
        return table
