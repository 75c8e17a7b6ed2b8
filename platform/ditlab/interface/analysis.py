"""Comparison of runs, figures without a run, and exported models. Imports torch on use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.home import Home
from ditlab.interface.run import Run
from ditlab.progress import Progress, ignore_progress

if TYPE_CHECKING:
    import torch

    from ditlab.analysis.comparison.compare import RunComparison
    from ditlab.analysis.exported import ExportedModel
    from ditlab.analysis.figures import FigureSet

_log = logging.getLogger("ditlab")


def compare(
    *runs: str | Run,
    out: str | Path | None = None,
    samples: int = 500,
    grid: int = 25,
    seed: int = 0,
    batch: int = 64,
    log: bool = True,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> RunComparison:
    """Compare two to eight runs: spec differences, parameters, curves, speed, samples and their quality.

    Writes `comparison.html`, `comparison.md` and pictures into `out` (None: `comparisons/` below DITLAB_HOME).
    `samples` are drawn from each run for quality metrics (0: none), `grid` are shown, `batch` at once; with `log` the
    page becomes an artifact of every run. `warn` receives warnings; None: the logger `ditlab`. `on_progress` is called
    with (task, done, total or None, unit).

    Raises UserError for runs that cannot be compared.
    """
    from ditlab.analysis.comparison.compare import compare_runs

    home, names = Home.from_environment(), [run.id if isinstance(run, Run) else run for run in runs]
    folder = None if out is None else Path(out)
    return compare_runs(
        names, home, warn or _log.warning, on_progress,
        out=folder, samples=samples, grid=grid, seed=seed, batch=batch, log=log,
    )  # fmt: skip


def figures() -> FigureSet:
    """Figures that need no run: embeddings, schedules, each family's fixed tables."""
    from ditlab.analysis.figures import general_figures

    return general_figures()


def load_export(
    folder: str | Path, device: str | torch.device | None = None, *, warn: Callable[[str], None] | None = None
) -> ExportedModel:
    """Load a folder that `Run.export` or `ditlab export` wrote: its spec, its network and its sampler.

    `device` None: the GPU where there is one, else the CPU. `warn` is called where spec.yaml was changed since; None:
    the logger `ditlab`. Raises UserError for a folder that holds no export, and for damaged or altered weights.
    """
    import torch

    from ditlab.analysis.exported import open_export
    from ditlab.analysis.saved_run import default_device

    place = default_device() if device is None else torch.device(device)
    return open_export(Path(folder), place, warn or _log.warning)
