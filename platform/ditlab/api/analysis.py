"""Averages of a run, figures without a run, exported models.

Imports torch on use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.api.run import Run, open_run
from ditlab.progress import Progress, ignore_progress

if TYPE_CHECKING:
    import torch

    from ditlab.analysis.drawing import ExportedModel
    from ditlab.analysis.figures import FigureSet
    from ditlab.analysis.saved_evaluation import CheckpointEvaluation


_log = logging.getLogger("ditlab")


def evaluate_averages(
    run: str | Run,
    *averages: str | float,
    quality: int | None = None,
    rows: int | None = None,
    batch: int | None = None,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> dict[str, CheckpointEvaluation]:
    """Evaluate a run's newest checkpoint under averages of other lengths, rebuilt from those that
    it has kept; return the evaluations by length.

    `averages` are relative lengths (0.1), or `"decay=0.999"`, which is approximate; the other
    arguments are those of `Run.evaluate`. Nothing is added to the run. Raises UserError for a run
    without averages (`training.averages`), for a length that cannot be rebuilt, and as
    `Run.evaluate` does.
    """
    if isinstance(run, Run):
        opened = run
    else:
        opened = open_run(run, warn=warn, on_progress=on_progress)
    opened.home.check_place()
    opened.wait_as_in_training()
    from ditlab.analysis.averages import evaluate_averages as evaluate

    return evaluate(opened.refresh()._opened().saved(), averages, quality, rows, batch, overrides)


def figures() -> FigureSet:
    """Figures that need no run: embeddings, schedules, each family's fixed tables."""
    from ditlab.analysis.figures import general_figures

    return general_figures()


def load_export(
    folder: str | Path,
    device: str | torch.device | None = None,
    *,
    warn: Callable[[str], None] | None = None,
) -> ExportedModel:
    """Load a folder that `Run.export` or `ditlab export` wrote: its spec, its network and its
    sampler.

    `device` None: the GPU where there is one, else the CPU. `warn` is called where spec.yaml was
    changed since; None: the logger `ditlab`. Raises UserError for a folder that holds no export,
    and for damaged or altered weights.
    """
    import torch

    from ditlab.analysis.drawing import open_export
    from ditlab.analysis.opened_run import default_device

    place = default_device() if device is None else torch.device(device)
    return open_export(Path(folder), place, warn or _log.warning)
