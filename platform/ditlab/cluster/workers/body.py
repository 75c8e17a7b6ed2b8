"""Body of a worker process: trains the runs that are assigned to its group, one after another."""

import gc
import os
import secrets
import time
from typing import Any

import torch
from ray import train
from ray.util.placement_group import get_current_placement_group
from torch import distributed

from ditlab.cluster.nodes.joining import check_joining_node
from ditlab.cluster.workers.channel import KeyValueChannel
from ditlab.cluster.workers.failure_record import record_failure
from ditlab.cluster.workers.heartbeat import HeartbeatThread
from ditlab.cluster.workers.worker_run import train_run
from ditlab.engine.distributed import Rank, current_rank
from ditlab.errors import RunFailed, UserError
from ditlab.runs.request import RunRequest
from ditlab.secrets import raise_hidden
from ditlab.spec.plugin_packages import plugin_packages
from ditlab.training.recovery import is_out_of_memory
from ditlab.training.reporting import ProgressMarker

POLL_INTERVAL = 0.05  # seconds between looks for the next assignment
ASSIGNMENT_TIMEOUT = 60.0  # seconds after which the other workers get an empty broadcast: gloo gives up on silent ones


def run_worker(config: dict[str, Any]) -> None:
    """Train every run that the group is assigned, until the last one.

    Args:
        config: `channel` (name of the group's channel), `threads`, `gpus` per worker, `timeout` of collectives.
    """
    channel, context = KeyValueChannel(config["channel"]), train.get_context()
    torch.set_num_threads(config["threads"])
    use_gpu = config["gpus"] > 0
    rank = current_rank(
        use_gpu, context.get_world_rank(), context.get_world_size(), context.get_local_rank(), config["timeout"]
    )
    if use_gpu and config["gpus"] < 1:
        torch.cuda.set_per_process_memory_fraction(config["gpus"])  # the rest is for workers that share the GPU
    if rank.is_first:
        channel.put("placement_group", get_current_placement_group().id.hex())
    while not (assignment := _next_assignment(channel, rank)).get("is_end"):
        try:
            _train_assigned(RunRequest.from_dict(assignment["request"]), KeyValueChannel(assignment["launch"]), rank)
        except Exception as error:
            if assignment["last"] or not _is_reusable(error, rank):
                raise_hidden(error)  # Ray writes it into its logs
        if assignment["last"]:
            return
        gc.collect()
        torch._dynamo.reset()  # compiled code of one run counts against the limits of the next
        if rank.is_first:
            channel.put("done", assignment["number"])


def _is_reusable(error: Exception, rank: Rank) -> bool:
    """Return True if the process can train another run after one that failed."""
    if rank.world_size > 1 or is_out_of_memory(error):
        return False  # the other workers are left in the middle of a step; memory is in pieces
    # A CUDA context does not outlive an error in a kernel, and most of those come to light later.
    return rank.device.type == "cpu" or isinstance(error, UserError | RunFailed)


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


def _train_assigned(request: RunRequest, launch: KeyValueChannel, rank: Rank) -> None:
    """Train one run, with heartbeats; an exception is recorded for the launcher, and raised again."""
    for name, value in request.home.cache_variables().items():
        os.environ.setdefault(name, value)
    marker, group = ProgressMarker(), _group_channel(launch, rank)
    heartbeats = HeartbeatThread(group, rank.rank, marker, request.experiment.resources.hang_timeout)
    heartbeats.start()
    try:
        if request.versions:
            packages = plugin_packages(request.experiment.to_dict())
            check_joining_node(request.versions, packages, request.home, request.run_id)
        train_run(request, launch, group, rank, marker)
    except Exception as error:
        record_failure(error, rank.rank, request.resumed, group)
        raise
    finally:
        heartbeats.stop()


def _group_channel(launch: KeyValueChannel, rank: Rank) -> KeyValueChannel:
    """Channel of this group of workers, named by the first one; Ray starts a new group when an elastic run grows."""
    name = [secrets.token_hex(4)]
    distributed.broadcast_object_list(name, 0)
    if rank.is_first:
        launch.put("group", name[0])
    return launch.child(name[0])
