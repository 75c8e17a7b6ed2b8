"""Comparison of runs, sweeps over samples of one, figures without a run, exported models.

Imports torch on use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ditlab.api.run import Run, open_run
from ditlab.errors import UserError
from ditlab.home import Home, RunFolder
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.cores import computing_beside_others
from ditlab.spec.files import spec_name
from ditlab.spec.sampling_sweep import load_sampling_sweep
from ditlab.tracking.records import find_training_run

if TYPE_CHECKING:
    import torch

    from ditlab.analysis.averages import AverageFrontier
    from ditlab.analysis.comparison import RunComparison
    from ditlab.analysis.drawing import ExportedModel
    from ditlab.analysis.figures import FigureSet
    from ditlab.analysis.sampling_run import SamplingResult
    from ditlab.analysis.sampling_sweep import SamplingForecast, SamplingSession


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


@dataclass(frozen=True)
class SamplingPlan:
    """A sweep over samples that has passed every check and was not started."""

    session: SamplingSession
    forecast: SamplingForecast

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab tune --dry-run --json`."""
        found, sweep = self.forecast, self.session.sweep
        points = [
            {"number": each.number, "values": dict(each.values), "evaluations": found.evaluations[each.number]}
            for each in self.session.points
        ]
        return {
            "status": "dry-run", "of": self.session.saved.folder.run_id, "points": points, "samples": sweep.samples,
            "seeds": sweep.noise_seeds(), "draws": found.num_draws, "evaluations": found.total,
            "seconds": found.seconds, "bytes": found.num_bytes,
        }  # fmt: skip


def sweep_samples(
    sweep: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    resume: str | None = None,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> SamplingResult:
    """Draw samples of a trained run at every point of a sweep's space, measure them, and write a report.

    `sweep`: the path of its YAML, whose `base` is `{run: RUN}`; None for one that is resumed; `overrides`: changes of
    it (`seeds=3`). `resume`: id or name of a sweep whose measured points are not drawn again; `auto`: the newest
    unfinished one with this content, if any. Raises UserError for anything wrong in it, and where the run cannot be
    measured so.
    """
    from ditlab.analysis.sampling_run import run_sweep, start_sweep

    session, folder, warn = _sampling_session(sweep, overrides, resume, warn, on_progress)
    with computing_beside_others(warn):
        return run_sweep(session, start_sweep(session, folder), warn)


def plan_samples(
    sweep: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    resume: str | None = None,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> SamplingPlan:
    """Check a sweep over samples as `sweep_samples` does, and forecast its network evaluations from a sample of each
    point; nothing is kept. Raises UserError."""
    from ditlab.analysis.sampling_sweep import SamplingLedger

    session, folder, warn = _sampling_session(sweep, overrides, resume, warn, on_progress)
    with computing_beside_others(warn):
        return SamplingPlan(session, session.forecast(SamplingLedger(folder).read() if folder else {}))


def _sampling_session(
    sweep: str | Path | None, overrides: Sequence[str], resume: str | None, warn: Callable[[str], None] | None,
    on_progress: Progress,
) -> tuple[SamplingSession, RunFolder | None, Callable[[str], None]]:  # fmt: skip
    """Open the sweep, and the folder of the one that is resumed, if any."""
    home, warn, folder = Home.from_environment(), warn or _log.warning, None
    if overrides and sweep is None:
        raise UserError(f"--set {overrides[0]} changes a file, and none is given; name the sweep's YAML as well.")
    given = None if sweep is None else load_sampling_sweep(Path(sweep), overrides)
    if given is not None:  # a name may come to mean another run
        given = given.of_run(find_training_run(home, given.base.run).folder.run_id)
    from ditlab.analysis.opened_run import open_found
    from ditlab.analysis.sampling_run import check_same, find_unfinished, stored_sampling_sweep
    from ditlab.analysis.sampling_sweep import SamplingSession

    if resume == "auto" and given is not None:
        folder = find_unfinished(home, given)
        warn(f"--resume auto: {f'sweep {folder.run_id}' if folder else 'no unfinished sweep has this content'}")
    elif resume is not None:
        stored = stored_sampling_sweep(home, resume)
        if stored is None:
            raise UserError(f"run '{resume}' is no sweep over samples; name one, or leave --resume out.")
        folder = stored[0]
        if given is not None:
            check_same(folder, stored[1], given)
        given = given or stored[1]
    if given is None:
        raise UserError("neither SWEEP nor --resume is given; name a sweep's YAML, or the id of one to go on with.")
    source = str(resume) if sweep is None else spec_name(Path(sweep))
    opened = open_found(find_training_run(home, given.base.run), home, warn, on_progress)
    return SamplingSession(given, opened.saved(), source), folder, warn


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
