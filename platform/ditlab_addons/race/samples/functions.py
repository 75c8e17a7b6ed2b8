"""Functions of `import ditlab` for sweeps over the samples of a trained run. They import torch on
use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import Progress, ignore_progress
from ditlab.runs.cores import computing_beside_others
from ditlab.spec.files import spec_name
from ditlab.tracking.records import find_training_run
from ditlab_addons.race.samples.spec import load_sampling_sweep

if TYPE_CHECKING:
    from ditlab_addons.race.samples.ledger import SampledFolder
    from ditlab_addons.race.samples.run import SamplingResult
    from ditlab_addons.race.samples.session import SamplingForecast, SamplingSession

_log = logging.getLogger("ditlab")


@dataclass(frozen=True)
class SamplingPlan:
    """A sweep over samples that has passed every check and was not started."""

    session: SamplingSession
    forecast: SamplingForecast

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab tune --dry-run --json`."""
        found = self.forecast
        sweep = self.session.sweep
        configurations = [
            {
                "number": each.number,
                "values": dict(each.values),
                "evaluations": found.evaluations[each.number],
            }
            for each in self.session.configurations
        ]
        return {
            "status": "dry-run",
            "of": self.session.saved.folder.run_id,
            "points": configurations,
            "samples": sweep.samples,
            "seeds": sweep.noise_seeds(),
            "draws": found.num_draws,
            "evaluations": found.total,
        }


def sweep_samples(
    sweep: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    resume: str | None = None,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> SamplingResult:
    """Draw samples of a trained run at every configuration of a sweep's space, measure them, and
    write a report.

    `sweep`: the path of its YAML, whose `base` is `{run: RUN}`; None for one that is resumed;
    `overrides`: changes of it (`seeds=3`). `resume`: id or name of a sweep whose measured
    configurations are not drawn again; `auto`: the newest unfinished one with this content, if any.
    Raises UserError for anything wrong in it, and where the run cannot be measured so.
    """
    from ditlab_addons.race.samples.run import run_sweep

    warn = warn or _log.warning
    session, folder = _open(sweep, overrides, resume, warn, on_progress)
    with computing_beside_others(warn):
        return run_sweep(session, folder, warn)


def plan_samples(
    sweep: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    resume: str | None = None,
    warn: Callable[[str], None] | None = None,
    on_progress: Progress = ignore_progress,
) -> SamplingPlan:
    """Check a sweep over samples as `sweep_samples` does, and forecast its network evaluations from
    a sample of each configuration; nothing is kept. Raises UserError."""
    warn = warn or _log.warning
    session, folder = _open(sweep, overrides, resume, warn, on_progress)
    with computing_beside_others(warn):
        return SamplingPlan(session, session.forecast(folder.draws() if folder else {}))


def _open(
    path: str | Path | None,
    overrides: Sequence[str],
    resume: str | None,
    warn: Callable[[str], None],
    on_progress: Progress,
) -> tuple[SamplingSession, SampledFolder | None]:
    """Open the sweep, and the folder of the one that is resumed, if any."""
    home = Home.from_environment()
    source = str(resume)
    sweep = None
    if path is not None:
        source = spec_name(Path(path))
        sweep = load_sampling_sweep(Path(path), overrides)
        # a name may come to mean another
        sweep = sweep.of_run(find_training_run(home, sweep.base.run).folder.run_id)
    elif overrides:
        raise UserError(
            f"--set {overrides[0]} changes a file, and none is given; name the sweep's YAML as "
            "well."
        )
    from ditlab.analysis.opened_run import open_found
    from ditlab_addons.race.samples.ledger import find_sampled, find_unfinished_sampled
    from ditlab_addons.race.samples.session import SamplingSession

    folder = None
    if resume == "auto" and sweep is not None:
        folder = find_unfinished_sampled(home, sweep)
        found = "no unfinished sweep has this content"
        if folder:
            found = f"sweep {folder.sweep_id}"
        warn(f"--resume auto: {found}")
    elif resume is not None:
        folder, sweep = find_sampled(home, resume, sweep)
    if sweep is None:
        raise UserError(
            "neither SWEEP nor --resume is given; name a sweep's YAML, or the id of one to go "
            "on with."
        )
    opened = open_found(find_training_run(home, sweep.base.run), home, warn, on_progress)
    return SamplingSession(sweep, opened.saved(), source), folder
