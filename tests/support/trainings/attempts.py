"""Tracked runs of several attempts without Ray, each on its own number of local workers, killed
where a test says.
"""

import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from ditlab.errors import RunFailed
from ditlab.runs.launch import Launch
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.runs.locks import lock_journal
from ditlab.runs.prepare import begin_launch, check_launch
from ditlab.runs.reporter import TrackedReporter
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train
from ditlab_addons.check.process_group import run_workers


@dataclass(frozen=True)
class LocalAttempt:
    """One attempt at a run."""

    workers: int
    killed_at: int | None = None
    """Step whose journaled metrics are followed by kill -9 of the first worker; None: it ends by
    itself.
    """
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """Microbatch splits, and steps that it skips."""


def train_attempts(experiment, attempts):
    """Train a run in DITLAB_HOME through attempts that go on with each other's checkpoints; return
    its folder.
    """
    run_id = None
    for attempt in attempts:
        spec = experiment.replace("resources.workers", attempt.workers)
        launch = begin_launch(check_launch(spec, run_id, local=False, remote=False))
        run_id = launch.run_id
        RunLifecycle(launch).start(launch.plan.total_steps)
        with suppress(RunFailed) if attempt.killed_at else ExitStack():
            run_workers(
                _train,
                (launch.to_dict(), attempt.killed_at, attempt.memory),
                attempt.workers,
                threads=1,
            )
    return launch.folder


def _train(rank, launch_values, killed_at, memory):
    launch = Launch.from_dict(launch_values)
    common = {"should_stop": lambda: False, "warn": lambda text: None, "marker": ProgressMarker()}
    with ExitStack() as stack:
        reporter = Reporter(**common)
        if rank.is_first:
            stack.enter_context(lock_journal(launch.folder))
            reporter = TrackedReporter(
                launch, lambda progress: None, None, ["here"] * rank.world_size, **common
            )
            stack.enter_context(reporter)
            if killed_at is not None:
                _kill_after(reporter, killed_at)
        outcome = train(replace(launch.training_run(), memory=memory), rank, reporter)
        if rank.is_first:
            reporter.finish(outcome)


def _kill_after(reporter, last):
    log = reporter.metrics

    def log_and_die(step, values):
        log(step, values)
        if step >= last:
            os.kill(os.getpid(), signal.SIGKILL)

    reporter.metrics = log_and_die
