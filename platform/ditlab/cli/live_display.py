"""Display of a command at work: rewritten in place on a terminal, plain lines anywhere else."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from ditlab.cli.plain_lines import PlainLines, print_plain
from ditlab.cli.terminal import TerminalConsole
from ditlab.cli.visible import shown


class LiveDisplay(ABC):
    """Progress on standard error, with messages above it. Use as a context manager."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or TerminalConsole(stderr=True)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._plain = PlainLines(self.describe, clock)

    @abstractmethod
    def render(self) -> RenderableType:
        """Content on a terminal."""

    @abstractmethod
    def describe(self) -> str:
        """Text of a plain line."""

    def tick(self) -> None:
        """Print a plain line if one is due; off a terminal a thread calls it four times a second."""
        self._plain.tick()

    def say(self, message: str) -> None:
        """Print a message above the display."""
        if self._live:
            self._console.print(shown(message), markup=False, highlight=False, soft_wrap=True)
        else:
            print_plain(message)

    def warn(self, message: str) -> None:
        """Print a warning, as `say` does."""
        self.say(f"warning: {message}")

    def __enter__(self) -> Self:
        if self._is_live:
            # Live redirects what is printed meanwhile to its own console: right for a terminal, wrong for `> FILE`.
            self._live = Live(
                console=self._console, get_renderable=self.render, transient=True, refresh_per_second=4,
                redirect_stdout=sys.stdout.isatty(),
            )  # fmt: skip
            self._live.__enter__()
        else:
            self._plain.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.__exit__(kind, error, traceback)
            self._live = None
        else:
            self._plain.stop()
