"""Training in this process, without Ray. The first signal ends it after a final checkpoint."""

import os
from collections.abc import Callable, Sequence

import torch

from ditlab.engine.distributed import Rank, single_process
from ditlab.runs.budget import budget_watched
from ditlab.runs.evaluator_process import async_evaluator, evaluate_in_process
from ditlab.runs.launch import Launch, RunCallbacks, added_hooks
from ditlab.runs.reporter import TrackedReporter
from ditlab.runs.signals import GRACE, stop_signals
from ditlab.training.hooks import StepHook
from ditlab.training.plan import TrainingRun
from ditlab.training.reporting import ProgressMarker, Reporter, RunOutcome
from ditlab.training.trainer import train

TrainWorker = Callable[[TrainingRun, Rank, Reporter, Sequence[StepHook]], RunOutcome]
"""Body of a worker, as `ditlab.training.trainer.train`."""


def train_in_process(
    launch: Launch,
    callbacks: RunCallbacks,
    grace: float = GRACE,
    body: TrainWorker = train,
) -> RunOutcome:
    """Train to the end, or until a signal (`runs.signals`). Raises UserError for wrong input,
    RunFailed. `body`: what is done in place of training.
    """
    resources = launch.experiment.resources
    for name, value in launch.home.cache_variables().items():
        os.environ.setdefault(name, value)
    callbacks.on_stage("building the network")
    before = torch.get_num_threads()
    threads = resources.cpus_per_worker or before
    if launch.threads:
        threads = launch.threads.number
    rank_of = single_process(resources.gpus_per_worker > 0, resources.collective_timeout)
    try:
        torch.set_num_threads(threads)
        with (
            stop_signals(grace) as stop,
            budget_watched(launch, stop, callbacks.warn),
            async_evaluator(launch, evaluate_in_process, callbacks.warn),
            rank_of as rank,
        ):
            reporter = TrackedReporter(
                launch,
                callbacks.on_progress,
                should_stop=lambda: stop.count > 0,
                warn=callbacks.warn,
                marker=ProgressMarker(),
            )
            with reporter:
                outcome = body(launch.training_run(), rank, reporter, added_hooks(launch, rank))
                reporter.finish(outcome)
            return outcome
    finally:
        torch.set_num_threads(before)
