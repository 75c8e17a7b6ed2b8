"""Console of the commands, and progress of one at work: rewritten in place on a terminal, plain
lines elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ditlab.cli.terminal import PlainLines, escape_for_terminal, print_plain
from ditlab.reports.formatting import format_clock, format_number
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from ditlab.training.reporting import TrainingProgress


STATUS_COLOURS = {
    "finished": "green",
    "running": "cyan",
    "failed": "red",
    "interrupted": "yellow",
    "stopped": "blue",
}
_LEAST_RATE_TIME = 1.0
"""Seconds before a rate is shown: until then it is that of what is buffered."""


class TerminalConsole(Console):
    """Console that prints names, paths and messages as they are: `[red]` is no colour, an escape
    byte is visible.
    """

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make text of a string: of a table's cell or title, or of what is printed."""
        return super().render_str(
            escape_for_terminal(text),
            **{**settings, "markup": False, "emoji": False, "highlight": False},
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render anything; text that was made elsewhere loses its colours where it holds control
        characters.
        """
        if isinstance(renderable, Text):
            visible = escape_for_terminal(renderable.plain)
            if visible != renderable.plain:
                renderable = Text(visible, renderable.style)
        return super().render(renderable, options)


def status_text(status: str) -> Text:
    """A run's status in its colour."""
    return Text(escape_for_terminal(status), STATUS_COLOURS.get(status, ""))


class LiveDisplay:
    """Progress on standard error, with messages above it. Use as a context manager."""

    def __init__(
        self,
        stage: str,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with a stage, which is shown until the first report."""
        self._console = console or TerminalConsole(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock = clock
        self._plain = PlainLines(self.describe, clock)
        self.stage(stage)

    def stage(self, name: str) -> None:
        """Show what is waited for."""
        self._text = f"{name} ..."

    def describe(self) -> str:
        """Text of a plain line."""
        return self._text

    def render(self) -> RenderableType:
        """Content on a terminal: the text of a plain line, cut where the terminal ends."""
        return Text(self.describe(), overflow="ellipsis", no_wrap=True)

    def tick(self) -> None:
        """Print a plain line if one is due; off a terminal a thread calls it four times a
        second.
        """
        self._plain.tick()

    def say(self, message: str) -> None:
        """Print a message above the display."""
        if self._is_live:
            self._console.print(message, soft_wrap=True)
        else:
            print_plain(message)

    def warn(self, message: str) -> None:
        """Print a warning, as `say` does."""
        self.say(f"warning: {message}")

    def __enter__(self) -> Self:
        # Live redirects what is printed meanwhile to its own console: right for a terminal, wrong
        # for `> FILE`.
        self._shown: Live | PlainLines = self._plain
        if self._is_live:
            self._shown = Live(
                console=self._console,
                get_renderable=self.render,
                transient=True,
                refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),
            )
        self._shown.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._shown.__exit__(*raised)


class ProgressBars(LiveDisplay):
    """A bar and a line about the latest task; in a log, lines alone. Call it to report
    (`ditlab.progress`).
    """

    _what = ""

    def __call__(self, what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        """Report that `done` of `total` (None: unknown) units of a task are done; an empty unit
        counts nothing.
        """
        if what != self._what:
            self._what = what
            self._unit = unit
            self._first = done
            self._begun = self._clock()
        self._done = done
        self._total = total

    def stage(self, name: str) -> None:
        """Show a stage that counts nothing."""
        self(name, 0, None, "")

    def render(self) -> RenderableType:
        """The text of a plain line, behind a bar where the total is known."""
        if not self._unit or not self._total:
            return super().render()
        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(self._total, self._done, width=20), super().render())
        return line

    def describe(self) -> str:
        """Latest task, its amount, rate and the time left: `reading: 3.1 MiB of 9.9 MiB · 1.2 MiB/s
        · 0:06 left`.
        """
        if not self._unit:
            return f"{self._what} ..."
        amounts = [amount for amount in (self._done, self._total) if amount is not None]
        text = f"{'/'.join(f'{amount:,}' for amount in amounts)} {self._unit}"
        if self._unit == "bytes":
            text = " of ".join(map(format_bytes, amounts))
        parts = [f"{self._what}: {text}"]
        moved = self._done - self._first
        seconds = self._clock() - self._begun
        if moved > 0 and seconds >= _LEAST_RATE_TIME:
            rate = moved / seconds
            if self._unit == "bytes":
                parts.append(f"{format_bytes(round(rate))}/s")
            else:
                parts.append(f"{format_number(rate)}/s")
        if moved > 0 and self._total is not None and self._done < self._total:
            parts.append(f"{format_clock(seconds * (self._total - self._done) / moved)} left")
        return " · ".join(parts)


class ProgressLine(LiveDisplay):
    """Step, loss by component, speed and time left, in one line; a stage before the first step."""

    def update(self, progress: TrainingProgress) -> None:
        """Show the latest progress: `step 120/600 · loss 0.5123 · velocity 0.5123 · 1,530 samples/s
        · 0:35 left`.
        """
        self._text = progress.describe()
