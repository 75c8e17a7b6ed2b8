"""Table for a terminal whose words are whole, however narrow the terminal is."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

LONGEST = 32
"""Characters of a word, such as a path, from which a text may break it."""


class WholeTable(Table):
    """Table that breaks no word up to `LONGEST`, no number and no heading.

    Where its columns are too wide together, it drops those of `optional`, the first one first, and
    says so below. Where that is not enough, each row becomes a list of its headings and values.
    """

    optional: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render what fits into the width."""
        wide = options.update(width=10_000)
        least = [_least_width(console, wide, column) for column in self.columns]
        kept = self._kept(least, options.max_width)
        widths = [least[number] for number in kept]
        spare = options.max_width - self._width(widths)
        if spare < 0:
            yield from self._as_lists(console, options)
            return
        shown = copy.copy(self)
        shown.title = None
        shown.caption = None
        # by its number Rich knows the last column, which has no space behind it
        shown.columns = [
            replace(self.columns[number], _index=place) for place, number in enumerate(kept)
        ]
        widest = [_widest(console, wide, column) for column in shown.columns]
        for column, width in zip(shown.columns, _widened(widths, widest, spare), strict=True):
            column.width = width
        if self.title:
            yield self.title
        yield from Table.__rich_console__(shown, console, options)
        if self.caption:
            yield self.caption
        names = [
            _heading(column) for number, column in enumerate(self.columns) if number not in kept
        ]
        if names:
            yield Text(f"not shown at {options.max_width} columns: {', '.join(names)}", "dim")

    def _kept(self, least: Sequence[int], most: int) -> list[int]:
        """Return the columns to show, by number; only as many optional ones are dropped as do not
        fit.
        """
        headings = [_heading(column) for column in self.columns]
        kept = [*range(len(least))]
        for heading in self.optional:
            if self._width([least[number] for number in kept]) <= most:
                break
            kept.remove(headings.index(heading))
        return kept

    def _width(self, columns: Sequence[int]) -> int:
        """Return the width of columns with the space around each, which Rich counts at the edges,
        too.
        """
        _, right, _, left = self.padding
        return sum(columns) + (left + right) * len(columns)

    def _as_lists(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield self.title
        headings = [_heading(column) for column in self.columns]
        cells = [list(column.cells) for column in self.columns]
        for row in zip(*cells, strict=True):
            facts = Table.grid(
                Column(no_wrap=True, style="dim"), Column(overflow="fold"), padding=(0, 1)
            )
            for heading, cell in zip(headings, row, strict=True):
                facts.add_row(heading, cell)
            yield facts
            yield ""
        if self.caption:
            yield self.caption


def _widened(widths: Sequence[int], widest: Sequence[int], spare: int) -> list[int]:
    """Widen columns by `spare` characters together, the narrowest one that wraps first."""
    widened = list(widths)
    for _ in range(spare):
        wrapping = [number for number, width in enumerate(widened) if width < widest[number]]
        if not wrapping:
            break
        widened[min(wrapping, key=lambda number: widened[number])] += 1
    return widened


def _heading(column: Column) -> str:
    return str(column.header)


def _least_width(console: Console, wide: ConsoleOptions, column: Column) -> int:
    """Return the width in which no word of a column breaks, or no cell where it does not wrap."""
    if column.no_wrap:
        return _widest(console, wide, column)
    cells = (column.header, *column.cells)
    return max(min(LONGEST, Measurement.get(console, wide, cell).minimum) for cell in cells)


def _widest(console: Console, wide: ConsoleOptions, column: Column) -> int:
    cells = (column.header, *column.cells)
    return max(Measurement.get(console, wide, cell).maximum for cell in cells)
