"""A run in this process, without Ray."""

import os
from collections.abc import Callable
from pathlib import Path

from ditlab.data.splits import DataSplits
from ditlab.engine.distributed import single_process
from ditlab.home import Home
from ditlab.runs.reporter import TrackedReporter
from ditlab.runs.request import RunRequest
from ditlab.runs.signals import stop_signals
from ditlab.training.loop import train
from ditlab.training.progress_marker import Pulse
from ditlab.training.reporting import Outcome, Progress


def run_here(
    request: RunRequest, data: DataSplits, on_progress: Callable[[Progress], None], warn: Callable[[str], None]
) -> Outcome:
    """Trains in this process; Ctrl-C or SIGTERM ends it after a final checkpoint. Raises as the worker body does."""
    experiment = request.experiment()
    home = Home(Path(request.home))
    for name, value in home.cache_variables().items():
        os.environ.setdefault(name, value)
    resources = experiment.resources
    os.environ.update(resources.network.environment())  # before the process group exists: NCCL reads them once
    with stop_signals() as wishes, single_process(resources.gpus_per_worker > 0, resources.collective_timeout) as rank:
        reporter = TrackedReporter(
            request, data, on_progress, should_stop=lambda: wishes.count > 0, warn=warn, pulse=Pulse()
        )
        with reporter:
            swap = request.folder().path / "swap"
            outcome = train(experiment, data, request.checkpoints(), rank, reporter, request.room, swap, home)
            reporter.finish(outcome)
        return outcome
