"""Training in this process, without Ray."""

import os

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
    with stop_signals() as stop, single_process(resources.gpus_per_worker > 0, resources.collective_timeout) as rank:
        reporter = TrackedReporter(
            run, callbacks.on_progress, should_stop=lambda: stop.count > 0, warn=callbacks.warn, marker=ProgressMarker()
        )
        with reporter:
            outcome = train(request.training_run(run.data, run.plan), rank, reporter)
            reporter.finish(outcome)
        return outcome
