"""Tracked runs of several attempts without Ray, each on its own number of local workers, killed where a test says."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from denoisers.parameters import count_parameters
from ditlab.checking.process_group import run_workers
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.errors import RunFailed
from ditlab.home import RunFolder
from ditlab.runs.launch import check_run, prepare_run
from ditlab.runs.lifecycle import RunLifecycle
from ditlab.runs.locks import lock_journal
from ditlab.runs.reporter import TrackedReporter
from ditlab.runs.request import PreparedRun, RunRequest
from ditlab.spec.experiment import Experiment
from ditlab.training.plan import plan_run
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.trainer import train


@dataclass(frozen=True)
class LocalAttempt:
    """One attempt at a run."""

    workers: int
    killed_at: int | None = None
    """Step whose journaled metrics are followed by kill -9 of the first worker; None: it ends by itself."""
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    """Halvings, and steps that it leaves out."""


def train_attempts(experiment: Experiment, attempts: Sequence[LocalAttempt]) -> RunFolder:
    """Train a run in DITLAB_HOME through attempts that go on with each other's checkpoints; return its folder."""
    run_id: str | None = None
    for attempt in attempts:
        spec = experiment.replace("resources.workers", attempt.workers)
        checked = check_run(spec, run_id, local=False, remote=False)
        run = prepare_run(checked)
        run_id = run.request.run_id
        lifecycle = RunLifecycle(run.request.folder, run.request.experiment, run.request.home, run.request.resumed)
        lifecycle.start(run.plan.total_steps)
        with suppress(RunFailed) if attempt.killed_at else ExitStack():
            run_workers(_train, (run.request.to_dict(), attempt.killed_at, attempt.memory), attempt.workers, threads=1)
    return run.request.folder


def _train(rank: Rank, request_values: Mapping[str, Any], killed_at: int | None, memory: MemoryPlan) -> None:
    request = RunRequest.from_dict(request_values)
    data = open_data(request.experiment.data, request.home, verify=False)
    plan = plan_run(request.experiment, data)
    common: dict[str, Any] = {"should_stop": lambda: False, "warn": lambda text: None, "marker": ProgressMarker()}
    with ExitStack() as stack:
        reporter: Any = Reporter(**common)
        if rank.is_first:
            stack.enter_context(lock_journal(request.folder))
            counts = count_parameters(request.experiment.model, request.experiment.objective)
            run = PreparedRun(request, data, plan, counts)
            reporter = TrackedReporter(run, lambda progress: None, None, ["here"] * rank.world_size, **common)
            stack.enter_context(reporter)
            if killed_at is not None:
                _kill_after(reporter, killed_at)
        outcome = train(replace(request.training_run(data, plan), memory=memory), rank, reporter)
        if rank.is_first:
            reporter.finish(outcome)


def _kill_after(reporter: Any, last: int) -> None:
    log = reporter.metrics

    def log_and_die(step: int, values: Mapping[str, float]) -> None:
        log(step, values)
        if step >= last:
            os.kill(os.getpid(), signal.SIGKILL)

    reporter.metrics = log_and_die
