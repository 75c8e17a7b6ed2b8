"""Live progress line of a training run; shown only where standard error is a terminal."""

import sys
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ditlab.secrets import hide
from ditlab.training.reporting import TrainingProgress


class ProgressLine:
    """Step, loss by component, speed and time left, in one line that is rewritten."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None

    def __enter__(self) -> "ProgressLine":
        if self._console.is_terminal:
            self._live = Live(Text("starting workers ..."), console=self._console, transient=True, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        if self._live:
            self._live.__exit__(*details)

    def update(self, progress: TrainingProgress) -> None:
        """Show the latest progress."""
        if self._live:
            self._live.update(Text(describe_progress(progress), overflow="ellipsis", no_wrap=True))

    def say(self, message: str) -> None:
        """Print a message above the line; where there is no line, on standard error."""
        message = hide(message)
        if self._live:
            self._console.print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stderr.write(f"{message}\n")

    def warn(self, message: str) -> None:
        """Print a warning, as `say` does."""
        self.say(f"warning: {message}")


def describe_progress(progress: TrainingProgress) -> str:
    """Progress as text: `step 120/600 · loss 0.5123 · velocity 0.5123 · 1,530 samples/s · 0:35 left`."""
    parts = [f"step {progress.step}/{progress.total_steps}"]
    for name, value in progress.metrics.items():
        if name.startswith("train/") and name not in ("train/samples_per_second", "train/grad_norm", "train/lr"):
            parts.append(f"{name.removeprefix('train/')} {value:.4f}")
    if progress.phase != "training":
        return " · ".join([*parts, f"{progress.phase} ..."])
    if progress.samples_per_second > 0 and progress.seconds_left is not None:
        parts += [f"{progress.samples_per_second:,.0f} samples/s", f"{_clock(progress.seconds_left)} left"]
    return " · ".join(parts)


def _clock(seconds: float) -> str:
    """Seconds as `0:35`, `2:05:09` or `73:00:00`: hours go on past a day."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
