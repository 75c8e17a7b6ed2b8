"""Training of one run on one worker: data, reporter, step loop, outcome."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from torch import distributed

from denoisers.parameter_counts import count_parameters
from ditlab.cluster.nodes.membership import node_name
from ditlab.cluster.workers.channel import PAUSED, PREEMPTED, STOPPED, KeyValueChannel
from ditlab.cluster.workers.scheduler_gate import SchedulerGate
from ditlab.cluster.workers.stop_poller import StopPoller
from ditlab.data.splits import open_data
from ditlab.engine.distributed import Rank
from ditlab.runs.locks import lock_journal
from ditlab.runs.reporter import TrackedReporter, max_nodes
from ditlab.runs.request import PreparedRun, RunRequest
from ditlab.secrets import hide
from ditlab.tracking.tracker import RunTracker
from ditlab.training.plan import plan_run
from ditlab.training.reporting import ProgressMarker, SilentReporter
from ditlab.training.trainer import train

GATE_TIMEOUT = 60.0  # seconds of one wait for a sweep's scheduler: the other workers wait in a collective meanwhile


def train_run(
    request: RunRequest, launch: KeyValueChannel, group: KeyValueChannel, rank: Rank, marker: ProgressMarker
) -> None:
    """Train a run to its end, and put the outcome on the group's channel.

    Args:
        request: the run.
        launch: channel of the launch, with requests to stop.
        group: channel of this group of workers.
        rank: place of this worker.
        marker: progress of this worker, for its heartbeats.
    """
    experiment, worker_nodes = request.experiment, _gather_node_names(rank)
    nodes = list(dict.fromkeys(worker_nodes))  # that of the first worker first
    warn = _warnings_to(group, rank.rank)
    is_first_of_node = worker_nodes.index(worker_nodes[rank.rank]) == rank.rank
    data = open_data(experiment.data, request.home, notify=warn if rank.local_rank == 0 else _drop)  # once a node
    plan = plan_run(experiment, data)
    with ExitStack() as stack:
        stop = stack.enter_context(StopPoller(launch))
        common: dict[str, Any] = {"should_stop": stop.is_set, "warn": warn, "marker": marker}
        reporter: Any = SilentReporter(**common)
        if rank.is_first:
            stack.enter_context(lock_journal(request.folder, warn=warn))
            run = PreparedRun(request, data, plan, count_parameters(experiment.model, experiment.objective))
            timeout = min(GATE_TIMEOUT, rank.timeout / 2)
            gate = SchedulerGate(request.trial_channel, request.gated, stop.is_set, marker, timeout)
            reporter = TrackedReporter(
                run, lambda progress: group.try_put("progress", asdict(progress)), gate.report, worker_nodes, **common
            )
            stack.enter_context(reporter)
        elif is_first_of_node and experiment.tracking.system_metrics:
            node = nodes.index(worker_nodes[rank.rank])
            stack.enter_context(lock_journal(request.folder, node))
            stack.enter_context(_system_tracker(request, node, max_nodes(experiment, nodes)))
        outcome = train(request.training_run(data, plan), rank, reporter)
        if outcome.status == "interrupted" and stop.reason == STOPPED:
            outcome = replace(outcome, status="stopped")
        if rank.is_first:
            if outcome.status != "interrupted" or stop.reason not in (PREEMPTED, PAUSED):  # else it goes on soon
                reporter.finish(outcome)
            group.put("outcome", asdict(outcome))


def _gather_node_names(rank: Rank) -> list[str]:
    """Name of each worker's node, in order of rank."""
    names = [node_name()] * rank.world_size
    distributed.all_gather_object(names, node_name())
    return names


def _system_tracker(request: RunRequest, node: int, num_nodes: int) -> RunTracker:
    """Tracker for the system metrics of a node other than the first worker's, into the same tracked run."""
    tracking = request.experiment.tracking
    tracker = RunTracker(request.folder, tracking.uri, request.home, node=node, budget=tracking.budget)
    tracker.watch_system(num_nodes=num_nodes)
    return tracker


def _warnings_to(group: KeyValueChannel, rank: int) -> Callable[[str], None]:
    """Function that sends warnings to the launcher; each worker has its own topic, so that none overwrites another."""
    warnings: list[str] = []

    def warn(message: str) -> None:
        warnings.append(hide(message))
        group.try_put(f"warnings/{rank}", warnings)

    return warn


def _drop(message: str) -> None:
    """Ignore a message that another worker of the same node sends as well."""
