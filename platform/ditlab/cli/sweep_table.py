"""The live table of a sweep; lines, where standard error is no terminal."""

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ditlab.reports.formatting import short_names, value_text
from ditlab.reports.sweeps.ranking import ENDED, Trial

SHOWN = 24  # rows at most: the trials that run, those that ended last, and the best
COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "stopped": "blue"}


class SweepTable:
    """Rewritten in place. Use as a context manager."""

    def __init__(self, title: str, metrics: Sequence[str], axes: Sequence[str], console: Console | None = None) -> None:
        self._title, self._metrics, self._axes = title, metrics, axes
        self._names = short_names(axes, ("trial", "run", "status", "step", *metrics))
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._told: set[int] = set()

    def __enter__(self) -> "SweepTable":
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=2, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._live:
            self._live.__exit__(*details)

    def update(self, rows: Sequence[Trial], best: int | None, summary: str) -> None:
        """Shows the trials; `best` is the number of the one that leads."""
        if self._live:
            self._live.update(self._table(_chosen(rows, best), best, f"{self._title} · {summary}"))
            return
        for row in rows:
            if row.status in ENDED and row.number not in self._told:
                self._told.add(row.number)
                sys.stderr.write(f"{self._line(row)}\n")

    def known(self, numbers: Sequence[int]) -> None:
        """Trials of an earlier session, which are not told again."""
        self._told.update(numbers)

    def warn(self, message: str) -> None:
        if self._live:
            self._console.print(f"warning: {message}", markup=False)
        else:
            sys.stderr.write(f"warning: {message}\n")

    def _line(self, row: Trial) -> str:
        values = ", ".join(f"{self._names[path]}={value_text(value)}" for path, value in row.values.items())
        metrics = " ".join(f"{name} {row.metrics[name]:.5g}" for name in self._metrics if name in row.metrics)
        said = row.note if row.status == "failed" else metrics
        return f"trial {row.number} ({values}): {row.status} at step {row.step}, {said}".rstrip(", ")

    def _table(self, rows: Sequence[Trial], best: int | None, title: str) -> Table:
        table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
        table.add_column("trial", justify="right", no_wrap=True)
        table.add_column("run", no_wrap=True)
        for path in self._axes:
            table.add_column(self._names[path], overflow="fold")
        table.add_column("status", no_wrap=True)
        table.add_column("step", justify="right", no_wrap=True)
        for name in self._metrics:
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            colour = COLOURS.get(row.status, "white")
            table.add_row(
                f"{'*' if row.number == best else ''}{row.number}", row.run_id if row.status != "waiting" else "",
                *(escape(value_text(row.values[path])) if path in row.values else "" for path in self._axes),
                f"[{colour}]{row.status}[/]", f"{row.step:,}/{row.total_steps:,}" if row.total_steps else "",
                *(f"{row.metrics[name]:.5g}" if name in row.metrics else "" for name in self._metrics),
                style="bold" if row.number == best else "",
            )  # fmt: skip
        return table


def _chosen(rows: Sequence[Trial], best: int | None) -> list[Trial]:
    """As many rows as a screen holds, in order of their number."""
    weight = {"running": 0, "interrupted": 1, "finished": 2, "stopped": 2, "failed": 2, "waiting": 3}

    def rank(row: Trial) -> tuple[int, int]:
        if row.number == best:
            return -1, 0
        return weight.get(row.status, 1), row.number if row.status == "waiting" else -row.number

    return sorted(sorted(rows, key=rank)[:SHOWN], key=lambda row: row.number)
