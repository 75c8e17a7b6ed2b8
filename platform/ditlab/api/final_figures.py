"""Figures at a run's end: samples and loss, then others for a share of the training's time.

Imports torch on use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.api.pages import log_files, renew_report
from ditlab.api.run import Run
from ditlab.reports.formatting import format_clock
from ditlab.reports.time_summary import FIGURES_TIME
from ditlab.runs.cores import computing_beside_others
from ditlab.runs.signals import is_interrupted
from ditlab.tracking.journal_writer import JournalWriter

if TYPE_CHECKING:
    from ditlab.analysis.figures import FigureSet

SHARE = 0.1
"""Share of the training's time for which figures beyond the first ones are drawn."""
FIRST = ("samples", "imputation", "loss")
"""Kinds that are always drawn; a region model's samples are its imputations."""
LARGEST_ON_CPU = 20_000_000
"""Parameters of the largest network that is drawn without a GPU: its figures take about a
minute.
"""


@dataclass(frozen=True)
class FinalFigures:
    """Figures that were drawn at a run's end."""

    kinds: list[str]
    """Kinds that the run has."""
    left: list[str]
    """Kinds that were left to `ditlab figures RUN`."""


def draw_final_figures(
    run: Run,
    warn: Callable[[str], None],
    on_stage: Callable[[str], None],
    share: float | None,
) -> FinalFigures:
    """Draw figures of a finished run into its folder; log them and their time to it, and renew its
    page.

    Samples and loss come first, then the most telling kinds, until these have taken `share` of the
    training's time (None: all kinds). With a share, a large network without a GPU has its loss
    alone, and a run with `evaluation.samples: 0` no figures. `on_stage` receives count and time
    left. A figure that fails is a warning.

    Raises KeyboardInterrupt at a signal; what was drawn until then stays.
    """
    if share is not None and not run.spec.evaluation.samples:
        return FinalFigures([], [])
    try:
        on_stage("opening the run for its figures")
        figures = run.figures()
        kinds = _by_importance(figures.kinds)
        first = [kind for kind in kinds if kind in FIRST]
        seconds = inf
        if share is not None:
            seconds = share * _training_seconds(run)
            if _is_slow(run):
                first = ["loss"]
                seconds = 0.0
        others = [kind for kind in kinds if kind not in first]
        drawn: list[str] = []
        files: list[Path] = []
        with _time_logged(run), computing_beside_others(warn):
            for kind, stage in scheduled(first, others, seconds, time.monotonic):
                on_stage(stage)
                drawn.append(kind)
                files += _draw(run, figures, kind, warn)
        on_stage("adding the figures to the run")
        pictures = [file for file in files if file.suffix in {".png", ".gif"}]
        log_files(run.home, run.folder, pictures, run.warn, "figures")
        renew_report(run.home, run.folder, warn)
        return FinalFigures(kinds, [kind for kind in kinds if kind not in drawn])
    except Exception as error:
        _raise_if_interrupted(error)
        warn(f"figures were not drawn ({error}); ditlab figures {run.id} draws them.")
        return FinalFigures([], [])


def scheduled(
    first: Sequence[str], others: Sequence[str], seconds: float, clock: Callable[[], float]
) -> Iterator[tuple[str, str]]:
    """Yield each kind that there is time for, with its stage: all of `first`, then `others` until
    `seconds` are over.

    A stage is `drawing figures 3 of 9, 0:40 left`; the time is told from the figures that are
    drawn.
    """
    kinds = [*first, *others] if seconds > 0 else [*first]
    begun = others_begun = clock()
    for number, kind in enumerate(kinds):
        now = clock()
        if number <= len(first):
            others_begun = now
        seconds_left = seconds - (now - others_begun)
        if number > len(first) and seconds_left <= 0:
            return
        stage = f"drawing figures {number + 1} of {len(kinds)}"
        if number:
            mean = (now - begun) / number
            longest = seconds_left + mean * max(0, len(first) - number)
            stage += f", {format_clock(min(longest, mean * (len(kinds) - number)))} left"
        yield kind, stage


def _by_importance(kinds: Sequence[str]) -> list[str]:
    """Sort kinds: the first ones, then the most telling."""
    from ditlab_models.figure_kinds import SENTENCES

    order = [*FIRST, *SENTENCES]
    return sorted(kinds, key=lambda kind: order.index(kind) if kind in order else len(order))


def _training_seconds(run: Run) -> float:
    """Seconds of the run's steps, evaluations and saves; 0 for a run too short to have logged
    them.
    """
    summary = run.time()
    return summary.training if summary else 0.0


def _is_slow(run: Run) -> bool:
    import torch

    from ditlab_models.parameters import count_parameters

    return not torch.cuda.is_available() and count_parameters(run.spec.model).total > LARGEST_ON_CPU


def _draw(run: Run, figures: FigureSet, kind: str, warn: Callable[[str], None]) -> list[Path]:
    try:
        return figures.save_formats(kind, formats=("png", "svg"))
    except Exception as error:
        _raise_if_interrupted(error)
        warn(
            f"figure {kind} was not drawn ({error}); ditlab figures {run.id} --kind {kind} "
            "draws it."
        )
        return []


@contextmanager
def _time_logged(run: Run) -> Iterator[None]:
    """Journal the time of the block, however it ends, at the run's last step."""
    begun = time.monotonic()
    try:
        yield
    finally:
        journal = JournalWriter(run.folder, warn=run.warn)
        journal.log_metrics(run.record.step, {FIGURES_TIME: time.monotonic() - begun})
        journal.close()


def _raise_if_interrupted(error: Exception) -> None:
    """Raise KeyboardInterrupt where a library made the error of one."""
    if is_interrupted():
        raise KeyboardInterrupt from error
