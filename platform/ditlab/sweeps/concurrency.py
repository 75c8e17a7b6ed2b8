"""Number of trials that train at once, and the cores of each of their workers."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ditlab.cluster.capacity import CpuShare, Node, check_capacity, cpu_share, runs_that_fit
from ditlab.errors import UserError
from ditlab.spec.resources import Resources
from ditlab.spec.sweep.spec import Pbt, Sweep


@dataclass(frozen=True)
class Concurrency:
    """Division of the machine or cluster among trials."""

    num_trials: int
    """Trials that train at once."""
    share: CpuShare
    """Cores of each worker."""
    note: str = ""
    """Message where fewer trials fit than the sweep's `concurrent`; else empty."""


def plan_concurrency(sweep: Sweep, resources: Resources, nodes: Sequence[Node], num_trials: int) -> Concurrency:
    """Choose how many of `num_trials` trials train at once on `nodes`.

    Raises UserError where not even one trial fits, or less than the whole population of population-based training.
    """
    is_population = isinstance(sweep.scheduler, Pbt)
    wanted = num_trials if is_population else sweep.concurrent or _one_core_a_worker(resources, nodes)
    wanted = min(wanted, num_trials)
    check_capacity(resources, nodes, cpu_share(resources, nodes, wanted))
    fit = next(num for num in range(wanted, 0, -1) if num == 1 or _fits(resources, nodes, num))
    share = cpu_share(resources, nodes, fit)
    if fit == wanted:
        return Concurrency(fit, share)
    if is_population:
        raise UserError(
            f"scheduler.kind=pbt trains all of trials={num_trials} at once, and {fit} of them fit; lower trials, or "
            "resources.cpus_per_worker or resources.gpus_per_worker under `fixed`."
        )
    note = f"concurrent={sweep.concurrent} trials do not fit at once: {fit} of them do." if sweep.concurrent else ""
    return Concurrency(fit, share, note)


def local_nodes() -> list[Node]:
    """This machine as the only node."""
    return [{"CPU": float(os.cpu_count() or 1), "GPU": float(torch.cuda.device_count())}]


def cluster_nodes() -> list[Node]:
    """Nodes of the cluster that this process is connected to, and those that its autoscaler may add."""
    # Both import Ray, which a dry run on one machine does not need.
    from ditlab.cluster.autoscaling import possible_growth
    from ditlab.cluster.nodes.membership import alive_nodes

    nodes = [node["Resources"] for node in alive_nodes()]
    return [*nodes, *possible_growth(nodes).nodes()]


def _one_core_a_worker(resources: Resources, nodes: Sequence[Node]) -> int:
    """Count the trials that fit with one core a worker, or with the spec's `cpus_per_worker`."""
    alone = cpu_share(resources, nodes) if resources.cpus_per_worker else CpuShare(1, 1.0)
    return max(1, runs_that_fit(resources, alone, nodes))


def _fits(resources: Resources, nodes: Sequence[Node], num: int) -> bool:
    return runs_that_fit(resources, cpu_share(resources, nodes, num), nodes) >= num
