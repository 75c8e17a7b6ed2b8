"""Sweeps over experiments, as functions: what `ditlab tune` calls, for notebooks and scripts."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ditlab.cluster.session import cluster_address, ray_session
from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.progress import ignore
from ditlab.runs.cores import recorded_threads, sleep_at_barriers
from ditlab.runs.signals import GRACE
from ditlab.spec.files import spec_name
from ditlab.spec.sweep import Sweep, load_sweep

if TYPE_CHECKING:
    from ditlab.sweeps.forecast import Forecast
    from ditlab.sweeps.prepare import PreparedSweep
    from ditlab.sweeps.progress import SweepProgress
    from ditlab.sweeps.results import SweepResult
    from ditlab.sweeps.start import StoredSweep


_log = logging.getLogger("ditlab")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep that has passed every check and was not started."""

    prepared: "PreparedSweep"
    """The sweep's trials, and how many of them train at once."""
    forecast: "Forecast"
    """Expected duration of each trial and of the sweep."""
    notes: list[str]
    """Lines that describe the sweep, and messages of the checks."""

    def to_dict(self) -> dict[str, Any]:
        """The fields of `ditlab tune --dry-run --json`."""
        return {"status": "dry-run", **self.forecast.to_dict(self.prepared)}


def tune(
    sweep: Sweep | str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    resume: str | None = None,
    grace: float = GRACE,
    on_progress: "Callable[[SweepProgress], None] | None" = None,
    say: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> "SweepResult":
    """Run the trials of a sweep, rank them, write a report, and return the result. Prints nothing
    by itself.

    In the main thread the first Ctrl-C ends the sweep after a checkpoint of each running trial, and
    the result's status is `interrupted`; a second one raises KeyboardInterrupt.

    Args:
        sweep: a validated sweep, or the path of its YAML; may be None for a sweep that is resumed.
        overrides: `field.path=value` changes of the YAML, as `--set` takes them.
        address: Ray cluster to train on; None: RAY_ADDRESS, else a Ray instance on this machine.
        resume: id or name of a sweep to resume, whose ended trials are not run again; `auto`: the
            newest unfinished sweep with this content, if there is one.
        grace: seconds from the first signal (Ctrl-C, SIGTERM, SIGUSR1) to the end; what is not
            saved by then is lost.
        on_progress: receives the trials' state twice a second.
        say: receives lines that describe the sweep at its start.
        warn: receives warnings; None: the logger `ditlab`.

    Raises:
        UserError: the input is wrong; the message names the field, its value and the remedy.
        RunFailed: no trial has a value of the metric, or Ray Tune failed.
    """
    source, given = _loaded(sweep, overrides, resume)
    address = cluster_address(address)
    say = say or ignore
    warn = warn or _log.warning
    with ray_session(address, 0) if address else nullcontext():
        prepared, stored = _prepare(source, given, resume, address, say, is_dry=False)
        from ditlab.runs.observers import run_observer_makers
        from ditlab.sweeps.start import create_sweep, resume_sweep

        makers = run_observer_makers(prepared.sweep, stored is not None, warn, "sweep_observers")
        expected = _forecast(prepared, stored).lines if prepared.sweep.budget else []

        if stored:
            started = resume_sweep(prepared, stored.folder)
        else:
            started = create_sweep(prepared)
        for line in (*prepared.notes, *started.notes, *expected):
            say(line)
        if not address and not prepared.base.resources.gpus_per_worker:
            at_once = prepared.concurrency.num_trials * prepared.base.resources.min_workers
            sleep_at_barriers(prepared.concurrency.share.threads, at_once)
        with ray_session(address, 0, warn):
            from ditlab.sweeps.session import SweepSession

            return SweepSession(started, on_progress or ignore, warn, grace, makers).run()


def plan_sweep(
    sweep: Sweep | str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    resume: str | None = None,
    say: Callable[[str], None] | None = None,
) -> SweepPlan:
    """Check a sweep as `tune` does and forecast its duration; starts nothing and contacts no
    cluster. Raises UserError."""
    source, given = _loaded(sweep, overrides, resume)
    prepared, stored = _prepare(
        source, given, resume, cluster_address(address), say or ignore, is_dry=True
    )
    damage = stored.folder.damage(prepared.home) if stored else []
    return SweepPlan(prepared, _forecast(prepared, stored), [*prepared.notes, *damage])


def _forecast(prepared: "PreparedSweep", stored: "StoredSweep | None") -> "Forecast":
    from ditlab.sweeps.forecast import forecast
    from ditlab.sweeps.start import read_past_trials

    return forecast(prepared, read_past_trials(prepared, stored.folder) if stored else [])


def _loaded(
    sweep: Sweep | str | Path | None, overrides: Sequence[str], resume: str | None
) -> tuple[str, Sweep | None]:
    """Name of the sweep in messages, and the sweep; None for one that is resumed without its file.
    Raises UserError.
    """
    if sweep is None and not resume:
        raise UserError(
            "neither SWEEP nor --resume is given; name a sweep's YAML, or the id of one to go "
            "on with."
        )
    if overrides and (sweep is None or isinstance(sweep, Sweep)):
        raise UserError(
            f"--set {overrides[0]} changes a file, and none is given; name the sweep's YAML as "
            "well."
        )
    if sweep is None and resume == "auto":
        raise UserError(
            "--resume auto finds a sweep by its file, and none is given; name the sweep's YAML."
        )
    if isinstance(sweep, str | Path):
        return spec_name(Path(sweep)), load_sweep(Path(sweep), overrides)
    return sweep.name if sweep else str(resume), sweep


def _prepare(
    source: str,
    given: Sweep | None,
    resume: str | None,
    address: str | None,
    say: Callable[[str], None],
    is_dry: bool,
) -> "tuple[PreparedSweep, StoredSweep | None]":
    """Find the sweep that is resumed, if any, and check all that can be checked."""
    # Imported once the sweep's file is known to be right: torch takes seconds.
    from ditlab.cluster.capacity import cluster_nodes
    from ditlab.sweeps.prepare import local_nodes, prepare_sweep
    from ditlab.sweeps.start import find_stored_sweep, find_unfinished_sweep
    from ditlab.tracking.names import change_texts, differing, flatten

    nodes = cluster_nodes() if address and not is_dry else local_nodes()
    home = Home.from_environment()
    sweep = given
    stored = before = threads = None
    if resume == "auto" and given:
        resume, line = find_unfinished_sweep(home, given)
        say(line)
    if resume:
        stored = find_stored_sweep(home, resume, given)
        if stored.note:
            say(stored.note)
        for text in change_texts(
            differing(flatten(stored.stored.to_dict()), flatten(stored.sweep.to_dict()))
        ):
            say(f"resumed with {text}")
        sweep = stored.sweep
        before = stored.stored
        trials = stored.folder.planned_trials()
        recorded = (recorded_threads(home.run(trial.run_id)) for trial in trials)
        threads = next(filter(None, recorded), None)
    assert sweep
    prepared = prepare_sweep(
        sweep, source, nodes, remote=address is not None, stored=before, threads=threads
    )
    return prepared, stored
