"""Figures at a run's end: samples and loss, or all kinds.

Imports torch on use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.api.pages import log_files, renew_report
from ditlab.api.run import Run
from ditlab.progress import ignore
from ditlab.runs.cores import computing_beside_others
from ditlab.runs.signals import is_interrupted

if TYPE_CHECKING:
    from ditlab.analysis.figures import FigureSet

FIRST = ("samples", "imputation", "loss")
"""Kinds that are drawn unasked; a region model's samples are its imputations."""
LARGEST_ON_CPU = 20_000_000
"""Parameters of the largest network that is drawn without a GPU: its figures take about a minute."""


@dataclass(frozen=True)
class FinalFigures:
    """Figures that were drawn at a run's end."""

    files: list[Path]
    kinds: list[str]
    """Kinds that the run has."""
    left: list[str]
    """Kinds that were left to `ditlab figures RUN`."""


def draw_final_figures(
    run: Run, warn: Callable[[str], None], on_stage: Callable[[str], None] = ignore, all_kinds: bool = False
) -> FinalFigures:
    """Draw figures of a finished run into its folder; log them to it, and renew its page.

    Samples and loss, unless `all_kinds` are asked for: of a large network without a GPU the loss alone, of a run with
    `evaluation.samples: 0` none. `on_stage` receives the count. A figure that fails is a warning.

    Raises KeyboardInterrupt at a signal; what was drawn until then stays.
    """
    if not all_kinds and not run.spec.evaluation.samples:
        return FinalFigures([], [], [])
    try:
        on_stage("opening the run for its figures")
        figures = run.figures()
        kinds = _by_importance(figures.kinds)
        chosen = kinds
        if not all_kinds:
            first = ("loss",) if _is_slow(run) else FIRST
            chosen = [kind for kind in kinds if kind in first]
        files: list[Path] = []
        with computing_beside_others(warn):
            for number, kind in enumerate(chosen, 1):
                on_stage(f"drawing figures {number} of {len(chosen)}")
                files += _draw(run, figures, kind, warn)
        on_stage("adding the figures to the run")
        pictures = [file for file in files if file.suffix in {".png", ".gif"}]
        log_files(run.home, run.folder, pictures, run.warn, "figures")
        renew_report(run.home, run.folder, warn)
        return FinalFigures(files, kinds, [kind for kind in kinds if kind not in chosen])
    except Exception as error:
        _raise_if_interrupted(error)
        warn(f"figures were not drawn ({error}); ditlab figures {run.id} draws them.")
        return FinalFigures([], [], [])


def _by_importance(kinds: Sequence[str]) -> list[str]:
    """Sort kinds: the first ones, then the most telling."""
    from ditlab_models.figure_kinds import SENTENCES

    order = [*FIRST, *SENTENCES]
    return sorted(kinds, key=lambda kind: order.index(kind) if kind in order else len(order))


def _is_slow(run: Run) -> bool:
    import torch

    from ditlab_models.parameters import count_parameters

    return not torch.cuda.is_available() and count_parameters(run.spec.model).total > LARGEST_ON_CPU


def _draw(run: Run, figures: FigureSet, kind: str, warn: Callable[[str], None]) -> list[Path]:
    try:
        return figures.save_formats(kind, formats=("png", "svg"))
    except Exception as error:
        _raise_if_interrupted(error)
        warn(f"figure {kind} was not drawn ({error}); ditlab figures {run.id} --kind {kind} draws it.")
        return []


def _raise_if_interrupted(error: Exception) -> None:
    """Raise KeyboardInterrupt where a library made the error of one."""
    if is_interrupted():
        raise KeyboardInterrupt from error
