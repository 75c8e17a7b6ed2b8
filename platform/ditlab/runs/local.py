"""Training in this process, without Ray. The first SIGINT or SIGTERM ends it after a final checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ditlab.engine.distributed import single_process
from ditlab.runs.launch import Launch, RunCallbacks
from ditlab.runs.reporter import TrackedReporter
from ditlab.training.reporting import ProgressMarker, RunOutcome
from ditlab.training.trainer import train


def train_in_process(launch: Launch, callbacks: RunCallbacks) -> RunOutcome:
    """Train to the end, or until the first SIGINT or SIGTERM. Raises UserError for wrong input, RunFailed."""
    resources = launch.experiment.resources
    for name, value in launch.home.cache_variables().items():
        os.environ.setdefault(name, value)
    os.environ.update(resources.network.environment())  # before the process group exists: NCCL reads them once
    before, cores, threads = torch.get_num_threads(), os.cpu_count() or 1, resources.cpus_per_worker
    if threads and threads > cores:
        callbacks.warn(
            f"resources.cpus_per_worker={threads}, and this machine has {cores} cores: the run computes with {cores} "
            "threads, and sums in another order."
        )
    rank_of = single_process(resources.gpus_per_worker > 0, resources.collective_timeout)
    try:
        torch.set_num_threads(min(threads, cores) if threads else before)
        with stop_signals() as stop, rank_of as rank:
            reporter = TrackedReporter(
                launch, callbacks.on_progress, should_stop=lambda: stop.count > 0, warn=callbacks.warn,
                marker=ProgressMarker(),
            )  # fmt: skip
            with reporter:
                outcome = train(launch.training_run(), rank, reporter)
                reporter.finish(outcome)
            return outcome
    finally:
        torch.set_num_threads(before)


class StopRequests:
    """Number of requests to stop a run, and their reason."""

    count = 0
    reason = "interrupted"
    """Value of the topic `stop` that workers read."""
    message = "stopping after a final checkpoint; once more ends at once."
    """Warning that answers the first request; empty for none."""


@contextmanager
def stop_signals() -> Iterator[StopRequests]:
    """Count SIGINT and SIGTERM in the main thread, and raise KeyboardInterrupt from the second on."""
    requests = StopRequests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def count(*_: object) -> None:
        requests.count += 1
        if requests.count > 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
