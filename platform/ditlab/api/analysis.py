"""Comparison of runs, averages of one, figures without a run, exported models.

Imports torch on use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ditlab.api.run import Run, open_run
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.cores import computing_beside_others
from ditlab.tracking.records import find_training_run

if TYPE_CHECKING:
    import torch

    from ditlab.analysis.averages import AverageFrontier
    from ditlab.analysis.comparison import RunComparison
    from ditlab.analysis.drawing import ExportedModel
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
    page becomes an artifact of every run. `warn` receives warnings (None: the logger `ditlab`), `on_progress` (task,
    done, total or None, unit). Raises UserError for runs that cannot be compared.
    """
    from ditlab.analysis.comparison import compare_runs

    names, folder = [run.id if isinstance(run, Run) else run for run in runs], None if out is None else Path(out)
    warn = warn or _log.warning
    with computing_beside_others(warn):
        return compare_runs(
            names, Home.from_environment(), warn, on_progress,
            out=folder, samples=samples, grid=grid, seed=seed, batch=batch, log=log,
        )  # fmt: skip


def evaluate_averages(
    run: str | Run,
    *averages: str | float,
    quality: int | None = None,
    rows: int | None = None,
    batch: int | None = None,
    overrides: Sequence[str] = (),
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> AverageFrontier:
    """Evaluate a run's newest checkpoint under averages of other lengths, rebuilt from those that it has kept.

    `averages` are relative lengths (0.1), or `"decay=0.999"`, which is approximate; the other arguments are those of
    `Run.evaluate`. Nothing is added to the run but a figure in its folder. Raises UserError for a run without averages
    (`training.averages`), for a length that cannot be rebuilt, and as `Run.evaluate` does.
    """
    opened = run if isinstance(run, Run) else open_run(run, warn=warn, on_progress=on_progress)
    opened.home.check_place()
    opened.wait_as_in_training()
    from ditlab.analysis.averages import evaluate_averages as evaluate
    from ditlab.analysis.opened_run import open_found

    found = find_training_run(opened.home, opened.id)
    saved = replace(open_found(found, opened.home, opened.warn, opened.on_progress), anyway=opened.anyway).saved()
    return evaluate(saved, averages, quality, rows, batch, overrides)


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

    from ditlab.analysis.drawing import open_export
    from ditlab.analysis.opened_run import default_device

    place = default_device() if device is None else torch.device(device)
    return open_export(Path(folder), place, warn or _log.warning)
