"""Progress of a training run: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from ditlab.cli.live_display import LiveDisplay
from ditlab.cli.plain_lines import format_clock

if TYPE_CHECKING:
    from ditlab.training.reporting import TrainingProgress

NOT_SHOWN = {f"train/{name}" for name in ("samples_per_second", "data_wait", "grad_norm", "lr")}


class ProgressLine(LiveDisplay):
    """Step, loss by component, speed and time left, in one line."""

    def __init__(
        self,
        stage: str = "starting workers",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with a stage, which is shown until the first step."""
        super().__init__(console, clock)
        self._text = f"{stage} ..."

    def update(self, progress: TrainingProgress) -> None:
        """Show the latest progress."""
        self._text = describe_progress(progress)

    def stage(self, name: str) -> None:
        """Show what is done before the first step."""
        self._text = f"{name} ..."

    def describe(self) -> str:
        """Latest progress."""
        return self._text

    def render(self) -> Text:
        """Latest progress, cut where the terminal ends."""
        return Text(self._text, overflow="ellipsis", no_wrap=True)


def describe_progress(progress: TrainingProgress) -> str:
    """Progress as text: `step 120/600 · loss 0.5123 · velocity 0.5123 · 1,530 samples/s · 0:35 left`."""
    parts = [f"step {progress.step}/{progress.total_steps}"]
    for name, value in progress.metrics.items():
        if name.startswith("train/") and name not in NOT_SHOWN:
            parts.append(f"{name.removeprefix('train/')} {value:.4f}")
    if progress.phase != "training":
        return " · ".join([*parts, f"{progress.phase} ..."])
    if progress.samples_per_second > 0 and progress.seconds_left is not None:
        parts += [f"{progress.samples_per_second:,.0f} samples/s", f"{format_clock(progress.seconds_left)} left"]
    return " · ".join(parts)
