"""Console of the commands, and progress of one at work: rewritten in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from ditlab.cli.terminal import PlainLines, escape_for_terminal, format_clock, print_plain
from ditlab.spec.values import format_bytes

if TYPE_CHECKING:
    from ditlab.training.reporting import TrainingProgress


STATUS_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "stopped": "blue"}
_BESIDE_BAR = 70
"""Characters of the longest task, its amount, rate and time: a terminal of 80 columns shows them whole."""
_LEAST_RATE_TIME = 1.0
"""Seconds before a rate is shown: until then it is that of what is buffered."""
NOT_SHOWN = {f"train/{name}" for name in ("samples_per_second", "data_wait", "grad_norm", "lr")}


class TerminalConsole(Console):
    """Console that prints names, paths and messages as they are: `[red]` in one is no colour, an escape byte is shown.

    Colours come from `Text` and styles in the code alone.
    """

    def render_str(self, text: str, **settings: Any) -> Text:
        """Make text of a string: of a table's cell or title, or of what is printed."""
        return super().render_str(
            escape_for_terminal(text), **{**settings, "markup": False, "emoji": False, "highlight": False}
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render anything; text that was made elsewhere loses its colours where it holds control characters."""
        if isinstance(renderable, Text) and escape_for_terminal(renderable.plain) != renderable.plain:
            renderable = Text(escape_for_terminal(renderable.plain), renderable.style)
        return super().render(renderable, options)


def status_text(status: str) -> Text:
    """A run's status in its colour."""
    return Text(escape_for_terminal(status), STATUS_COLOURS.get(status, ""))


class LiveDisplay(ABC):
    """Progress on standard error, with messages above it. Use as a context manager."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or TerminalConsole(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._clock, self._plain = clock, PlainLines(self.describe, clock)

    @abstractmethod
    def describe(self) -> str:
        """Text of a plain line."""

    def render(self) -> RenderableType:
        """Content on a terminal: the text of a plain line, cut where the terminal ends."""
        return Text(self.describe(), overflow="ellipsis", no_wrap=True)

    def tick(self) -> None:
        """Print a plain line if one is due; off a terminal a thread calls it four times a second."""
        self._plain.tick()

    def say(self, message: str) -> None:
        """Print a message above the display."""
        if self._is_live:
            self._console.print(escape_for_terminal(message), markup=False, highlight=False, soft_wrap=True)
        else:
            print_plain(message)

    def warn(self, message: str) -> None:
        """Print a warning, as `say` does."""
        self.say(f"warning: {message}")

    def __enter__(self) -> Self:
        # Live redirects what is printed meanwhile to its own console: right for a terminal, wrong for `> FILE`.
        self._shown: Live | PlainLines = self._plain
        if self._is_live:
            self._shown = Live(
                console=self._console, get_renderable=self.render, transient=True, refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),
            )  # fmt: skip
        self._shown.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._shown.__exit__(*raised)


class Amount(ProgressColumn):
    """A task's progress as text: `3.1 MiB of 9.9 MiB`, `120,000/1,000,000 peaks · 3,500/s`."""

    def render(self, task: Task) -> Text:
        """Format a task's progress."""
        total, unit = None if task.total is None else int(task.total), task.fields["unit"]
        parts = [describe_amount(int(task.completed), total, unit)]
        if task.speed and (task.elapsed or 0.0) >= _LEAST_RATE_TIME:
            parts.append(describe_rate(task.speed, unit))
        return Text(" · ".join(parts), style="progress.download")


class ProgressBars(LiveDisplay):
    """A bar for each task that is reported; in a log, lines about the latest. Call it to report (`ditlab.progress`).

    Use as a context manager, around imports that take seconds as well.
    """

    def __init__(self, stage: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with a stage, which is shown until the first report."""
        super().__init__(console, clock)
        bar = BarColumn(min(40, max(10, self._console.width - _BESIDE_BAR)))
        columns = (TextColumn("{task.description}", markup=False), bar, Amount(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=self._console)
        self._tasks: dict[str, TaskID] = {}
        self._what = ""
        self.stage(stage)

    def __call__(self, what: str, done: int, total: int | None, unit: str = "bytes") -> None:
        """Report that `done` of `total` (None: unknown) units of a task are done; an empty unit counts nothing."""
        if what != self._what:
            self._what, self._unit, self._first, self._begun = what, unit, done, self._clock()
        self._done, self._total = done, total
        if unit and what not in self._tasks:
            self._tasks[what] = self._bars.add_task(escape_for_terminal(what), total=total, unit=unit)
        if unit:
            self._bars.update(self._tasks[what], completed=done, total=total)

    def stage(self, name: str) -> None:
        """Show a stage that counts nothing."""
        self(name, 0, None, "")

    def render(self) -> RenderableType:
        """A stage's name, or the bars."""
        return self._bars if self._unit else super().render()

    def describe(self) -> str:
        """Latest task, its amount, rate and the time left."""
        if not self._unit:
            return f"{self._what} ..."
        parts = [f"{self._what}: {describe_amount(self._done, self._total, self._unit)}"]
        moved, seconds = self._done - self._first, self._clock() - self._begun
        if moved > 0 and seconds >= _LEAST_RATE_TIME:
            parts.append(describe_rate(moved / seconds, self._unit))
        if moved > 0 and self._total is not None and self._done < self._total:
            parts.append(f"{format_clock(seconds * (self._total - self._done) / moved)} left")
        return " · ".join(parts)


def describe_rate(rate: float, unit: str) -> str:
    """A rate a second as text: `3,500/s`, `4.2/s`, `12.5 MiB/s`."""
    if unit == "bytes":
        return f"{format_bytes(round(rate))}/s"
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def describe_amount(done: int, total: int | None, unit: str) -> str:
    """An amount as text: `3.1 MiB of 9.9 MiB`, `120,000/1,000,000 peaks`, `37 evaluations` of an unknown number."""
    numbers = [number for number in (done, total) if number is not None]
    if unit == "bytes":
        return " of ".join(map(format_bytes, numbers))
    return f"{'/'.join(f'{number:,}' for number in numbers)} {unit}"


class ProgressLine(LiveDisplay):
    """Step, loss by component, speed and time left, in one line."""

    def __init__(self, stage: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with a stage, which is shown until the first step."""
        super().__init__(console, clock)
        self.stage(stage)

    def stage(self, name: str) -> None:
        """Show what is done before the first step."""
        self._text = f"{name} ..."

    def update(self, progress: TrainingProgress) -> None:
        """Show the latest progress: `step 120/600 · loss 0.5123 · velocity 0.5123 · 1,530 samples/s · 0:35 left`."""
        parts = [f"step {progress.step}/{progress.total_steps}"]
        for name, value in progress.metrics.items():
            if name.startswith("train/") and name not in NOT_SHOWN:
                parts.append(f"{name.removeprefix('train/')} {value:.4f}")
        if progress.phase != "training":
            parts.append(f"{progress.phase} ...")
        elif progress.samples_per_second > 0 and progress.seconds_left is not None:
            parts += [f"{progress.samples_per_second:,.0f} samples/s", f"{format_clock(progress.seconds_left)} left"]
        self._text = " · ".join(parts)

    def describe(self) -> str:
        """Latest progress."""
        return self._text
