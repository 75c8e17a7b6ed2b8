"""Table of where a run's time went, in 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ditlab.reports.time_summary import TimeSummary

MOST_COLUMNS = 80


def time_lines(summary: TimeSummary) -> list[str]:
    """Return the lines of the table: a heading, a line a phase, then utilisation, speed and memory."""
    width = max(len("phase"), *(len(name) for name in summary.seconds))
    rows = [
        f"  {each.name:<{width}}  {each.seconds:>10,.2f}  {each.share:>6.1%}  {each.step_ms:>9,.2f}"
        for each in summary.shares()
    ]
    head = f"  {'phase':<{width}}  {'seconds':>10}  {'share':>6}  {'ms a step':>9}"
    return [summary.heading(), head, *rows, *(line for text in summary.sentences() for line in _folded(text))]


def _folded(text: str) -> list[str]:
    """Break a line between its parts, so that it fits."""
    from textwrap import wrap

    return wrap(text, MOST_COLUMNS, initial_indent="  ", subsequent_indent="  ")
