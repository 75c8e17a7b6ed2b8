"""Body of a worker process: trains the runs that are assigned to its group, one after another.

Of each run: its data, its reporter, the training, its outcome or the record of the exception that
ended it.
"""

from __future__ import annotations

import gc
import secrets
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from ray.train import get_context
from ray.util.placement_group import get_current_placement_group
from torch import distributed

from ditlab.cluster.channel import (
    CHANNEL_ERRORS,
    PAUSED,
    PREEMPTED,
    STOPPED,
    HeartbeatThread,
    KeyValueChannel,
    terminated,
)
from ditlab.cluster.nodes import node_name
from ditlab.cluster.ray_failures import ray_failure
from ditlab.cluster.session import set_defaults
from ditlab.cluster.survey import check_joining_node
from ditlab.engine.distributed import Rank, current_rank, is_peer_loss
from ditlab.errors import RunFailed, StorageOutage, Unreachable, UserError
from ditlab.progress import ignore
from ditlab.runs.launch import Launch, added_hooks
from ditlab.runs.locks import lock_journal
from ditlab.runs.reporter import TrackedReporter, max_nodes
from ditlab.secrets import hide, raise_hidden
from ditlab.tracking.tracker import RunTracker
from ditlab.training.recovery import OutOfMemory, is_out_of_memory
from ditlab.training.reporting import Reporter
from ditlab.training.trainer import train

# seconds between two searches for the next assignment, or for the answer of a scheduler
POLL_INTERVAL = 0.05
# seconds after which the other workers get an empty broadcast: gloo gives up on silent ones
ASSIGNMENT_TIMEOUT = 60.0
# seconds of one wait for a sweep's scheduler: the other workers wait in a collective meanwhile
SWEEP_TIMEOUT = 60.0


def run_worker(config: dict[str, Any]) -> None:
    """Train every run that the group is assigned, until the last one.

    `config` has `channel` (name of the group's channel), `threads`, `gpus` per worker, `timeout` of
    collectives.
    """
    channel = KeyValueChannel(config["channel"])
    context = get_context()
    torch.set_num_threads(config["threads"])
    use_gpu = config["gpus"] > 0
    rank = current_rank(
        use_gpu,
        context.get_world_rank(),
        context.get_world_size(),
        context.get_local_rank(),
        config["timeout"],
    )
    if use_gpu and config["gpus"] < 1:
        # the rest is for workers that share the GPU
        torch.cuda.set_per_process_memory_fraction(config["gpus"])
    if rank.is_first:
        channel.put("placement_group", get_current_placement_group().id.hex())
    gc.freeze()  # what is imported: a collection would look through it, for 0.2 s
    while not (assignment := _next_assignment(channel, rank)).get("is_end"):
        try:
            launch = Launch.from_dict(assignment["launch"])
            _train_assigned(launch, KeyValueChannel(assignment["control"]), rank)
        except Exception as error:
            # Other workers would be left in the middle of a step, and a lack of memory leaves
            # memory in pieces. A CUDA context does not outlive an error in a kernel, which mostly
            # shows later.
            is_alone = rank.world_size == 1
            keeps_device = not use_gpu or isinstance(error, UserError | RunFailed)
            is_reusable = is_alone and keeps_device and not is_out_of_memory(error)
            if assignment["last"] or not is_reusable:
                raise_hidden(error)  # Ray writes it into its logs
        if assignment["last"] or terminated.is_set():
            return
        if rank.is_first:  # first, as the launcher prepares the next run meanwhile
            channel.put("done", assignment["number"])
        gc.collect()
        compiler = sys.modules.get("torch._dynamo")
        if compiler:
            compiler.reset()  # compiled code of one run counts against the limits of the next


def _next_assignment(channel: KeyValueChannel, rank: Rank) -> dict[str, Any]:
    """First assignment that is not done, the same on all workers. Blocks until there is one."""
    found: list[dict[str, Any] | None] = [None]
    while found[0] is None:
        deadline = time.monotonic() + min(ASSIGNMENT_TIMEOUT, rank.timeout / 2)
        while rank.is_first and found[0] is None and time.monotonic() < deadline:
            assignment = channel.get("assignment")
            if assignment and assignment["number"] > (channel.get("done") or 0):
                found = [assignment]
            else:
                time.sleep(POLL_INTERVAL)
        if rank.world_size > 1:
            distributed.broadcast_object_list(found, 0)
    return found[0]


def _train_assigned(launch: Launch, control: KeyValueChannel, rank: Rank) -> None:
    """Train one run, with heartbeats; an exception is recorded for the launcher, and raised
    again.
    """
    set_defaults(launch.home.cache_variables())
    # of this group of workers: Ray starts a new group when an elastic run grows
    group_name = [secrets.token_hex(4)]
    distributed.broadcast_object_list(group_name, 0)
    if rank.is_first:
        control.put("group", group_name[0])
    group = control.child(group_name[0])
    link = HeartbeatThread(group, control, rank.rank, launch.experiment.resources.hang_timeout)
    link.start()
    try:
        check_joining_node(launch)
        _train_run(launch, group, rank, link)
    except Exception as error:
        record_failure(error, rank.rank, launch.resumed, group)
        raise
    finally:
        link.end()


def _train_run(launch: Launch, group: KeyValueChannel, rank: Rank, link: HeartbeatThread) -> None:
    """Train a run to its end, and put the outcome on the group's channel."""
    experiment = launch.experiment
    warnings = []
    worker_nodes = [""] * rank.world_size
    distributed.all_gather_object(worker_nodes, node_name())
    nodes = list(dict.fromkeys(worker_nodes))  # that of the first worker first
    is_first_of_node = worker_nodes.index(worker_nodes[rank.rank]) == rank.rank

    def warn(message: str) -> None:
        warnings.append(hide(message))
        # a topic each, so that no worker overwrites another's
        group.try_put(f"warnings/{rank.rank}", warnings)

    launch = launch.changed(notify=warn if rank.local_rank == 0 else ignore)  # once a node
    training_run = launch.training_run()
    with ExitStack() as stack:
        common: dict[str, Any] = {
            "should_stop": link.should_stop,
            "warn": warn,
            "marker": link.marker,
        }
        reporter: Any = Reporter(**common)
        if rank.is_first:
            stack.enter_context(lock_journal(launch.folder, warn=warn))
            report = None
            if launch.trial_channel:
                report = partial(
                    report_to_sweep, launch, link, min(SWEEP_TIMEOUT, rank.timeout / 2)
                )
            reporter = TrackedReporter(
                launch,
                lambda progress: group.try_put("progress", asdict(progress)),
                report,
                worker_nodes,
                **common,
            )
            stack.enter_context(reporter)
        elif is_first_of_node and experiment.tracking.system_metrics:
            _track_system(stack, launch, nodes, nodes.index(worker_nodes[rank.rank]))
        outcome = train(training_run, rank, reporter, added_hooks(launch, rank))
        if outcome.status == "interrupted" and link.stop_reason == STOPPED:
            outcome = replace(outcome, status="stopped")
        if rank.is_first:
            goes_on = outcome.status == "interrupted" and link.stop_reason in (PREEMPTED, PAUSED)
            if not goes_on:
                reporter.finish(outcome)
            group.put("outcome", asdict(outcome))


def _track_system(stack: ExitStack, launch: Launch, nodes: Sequence[str], node: int) -> None:
    """Log the system metrics of a node, by its place among the nodes, into the same tracked run."""
    stack.enter_context(lock_journal(launch.folder, node))
    tracking = launch.experiment.tracking
    tracker = RunTracker(
        launch.folder, tracking.uri, launch.home, node=node, budget=tracking.budget
    )
    tracker.watch_system(num_nodes=max_nodes(launch.experiment, nodes))
    stack.enter_context(tracker)


def report_to_sweep(
    launch: Launch, link: HeartbeatThread, timeout: float, step: int, metrics: Mapping[str, float]
) -> bool:
    """Report a trial's evaluation, and wait for the sweep's scheduler where it has one.

    Returns True if training still has to wait after `timeout` seconds.
    """
    channel = KeyValueChannel(launch.trial_channel)
    link.marker.begin(step, "waiting for the sweep's scheduler", is_untimed=True)
    channel.try_put("report", {"step": step, "metrics": dict(metrics)})
    deadline = time.monotonic() + timeout
    while launch.gated and not link.should_stop():
        with suppress(*CHANNEL_ERRORS):
            if (channel.get("go") or 0) >= step:
                return False
        if time.monotonic() > deadline:
            return True
        time.sleep(POLL_INTERVAL)
    return False


def record_failure(error: Exception, rank: int, resumed: bool, group: KeyValueChannel) -> None:
    """Put an exception on the group's channel, unless an earlier failure is recorded there.

    The loss of another worker is recorded apart, as its cause lies elsewhere.
    """
    if is_peer_loss(error):
        first = str(error).splitlines()[0].split(". ")[0]  # the rest is gloo's advice
        group.put("peer_loss", hide(f"worker {rank}: {first[:300]}"), overwrite=False)
        return
    record: dict[str, Any] = {"rank": rank, "message": hide(str(error))}
    if isinstance(error, StorageOutage) or (isinstance(error, Unreachable) and resumed):
        record |= {"kind": "storage_unreachable"}
    elif isinstance(error, UserError):
        record |= {"kind": "user_error"}
    elif isinstance(error, RunFailed):
        record |= {"kind": error.kind, "trace": ""}
    elif isinstance(error, OutOfMemory):
        record |= {"kind": "out_of_memory", "message": hide(error.message), "step": error.step}
    elif lost := ray_failure(error):
        record |= {"kind": lost.kind.value, "message": hide(f"worker {rank}: {lost.message}")}
    else:
        message = hide(f"{type(error).__name__}: {error}")
        record |= {"kind": "crash", "message": message, "trace": hide(traceback.format_exc())}
    group.put("failure", record, overwrite=False)
