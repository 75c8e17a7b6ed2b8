"""Training in this process, without Ray."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ditlab.engine.distributed import single_process
from ditlab.runs.callbacks import RunCallbacks
from ditlab.runs.reporter import TrackedReporter
from ditlab.runs.request import PreparedRun
from ditlab.runs.signals import stop_signals
from ditlab.training.progress_marker import ProgressMarker
from ditlab.training.reporting import RunOutcome
from ditlab.training.worker import train


def train_in_process(run: PreparedRun, callbacks: RunCallbacks) -> RunOutcome:
    """Train a run to its end, or until the first SIGINT or SIGTERM, after a final checkpoint.

    Raises:
        UserError: the input is wrong.
        RunFailed: the run failed.
    """
    request, resources = run.request, run.request.experiment.resources
    for name, value in request.home.cache_variables().items():
        os.environ.setdefault(name, value)
    os.environ.update(resources.network.environment())  # before the process group exists: NCCL reads them once
    rank_of = single_process(resources.gpus_per_worker > 0, resources.collective_timeout)
    with stop_signals() as stop, _threads(resources.cpus_per_worker, callbacks.warn), rank_of as rank:
        reporter = TrackedReporter(
            run, callbacks.on_progress, should_stop=lambda: stop.count > 0, warn=callbacks.warn, marker=ProgressMarker()
        )
        with reporter:
            outcome = train(request.training_run(run.data, run.plan), rank, reporter)
            reporter.finish(outcome)
        return outcome


@contextmanager
def _threads(wanted: int | None, warn: Callable[[str], None]) -> Iterator[None]:
    """Compute with as many threads as a worker on Ray would, at most one a core; None: torch's number."""
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    if wanted is not None:
        if wanted > cores:
            warn(
                f"resources.cpus_per_worker={wanted}, and this machine has {cores} cores: the run computes with "
                f"{cores} threads, and sums in another order."
            )
        torch.set_num_threads(min(wanted, cores))
    try:
        yield
    finally:
        torch.set_num_threads(before)
