"""Capacity of a cluster: workers that fit on its nodes, and their cores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.resources import Resources

Node = Mapping[str, float]
"""Resources of a node by Ray's names: `CPU`, `GPU`."""


def has_autoscaler() -> bool:
    """Return True if the cluster has an autoscaler: placement requests that wait make it add
    nodes.
    """
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2())


def cluster_nodes() -> list[Node]:
    """Nodes of the connected cluster."""
    from ditlab.cluster.nodes import alive_nodes

    return [node["Resources"] for node in alive_nodes()]


@dataclass(frozen=True)
class CpuShare:
    """Cores of its node that one worker gets."""

    threads: int
    cpus: float
    """CPUs as Ray counts them: less than 1 where more workers than cores run at once."""


def cpu_share(
    resources: Resources, nodes: Sequence[Node], concurrent: int | None = None
) -> CpuShare:
    """Cores of each worker: the number that `resources` names, else an even share of all cores,
    which fits on one node.

    A worker of a single run has at least one core, as Ray is given enough of them. `concurrent`
    trials of a sweep share the cores that exist. A worker with GPUs takes no larger part of its
    node's cores than of its GPUs, so that others fit beside it.
    """
    cpus = resources.cpus_per_worker
    if cpus:
        return CpuShare(cpus, float(cpus))
    cores = [node.get("CPU", 0) for node in nodes]
    share = min(max(cores, default=1), sum(cores) / (resources.max_workers * (concurrent or 1)))
    gpus = resources.gpus_per_worker
    if gpus:
        for node in nodes:
            if node.get("GPU", 0):
                share = min(share, node.get("CPU", 0) * gpus / node["GPU"])
    if share >= 1 or concurrent is None:
        threads = max(1, int(share))
        return CpuShare(threads, float(threads))
    return CpuShare(1, max(0.01, math.floor(share * 100) / 100))


def runs_that_fit(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> int:
    """Number of such runs that fit on the nodes at once."""
    return _workers_that_fit(resources, share, nodes) // resources.min_workers


def _workers_that_fit(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> int:
    num = 0
    gpus = resources.gpus_per_worker
    for node in nodes:
        fit = math.floor(node.get("CPU", 0) / share.cpus + 1e-6)
        if gpus:  # a part of a GPU lies on one of them
            fit = min(fit, int(node.get("GPU", 0)) * math.floor(1 / gpus + 1e-6))
        num += fit
    return num


def check_capacity(
    resources: Resources, nodes: Sequence[Node], share: CpuShare | None = None, grows: bool = False
) -> None:
    """Raises UserError where the workers do not fit on the nodes of a cluster that never `grows`.

    Ray would wait for ever.
    """
    share = share or cpu_share(resources, nodes)
    fit = _workers_that_fit(resources, share, nodes)
    if fit >= resources.min_workers or grows:
        return
    if fit:
        remedy = f"set resources.workers to at most {fit}"
    else:
        remedy = "lower resources.cpus_per_worker or gpus_per_worker"
    raise UserError(
        f"resources.workers={resources.min_workers} at {_each(resources, share)} each do not "
        f"fit: the cluster has {_sizes(nodes)}; {remedy}, or add nodes."
    )


def nodes_for_workers(
    experiment: Experiment, nodes: Sequence[Node], grows: bool = False
) -> list[Node]:
    """Return the nodes without what an asynchronous evaluation reserves on one of them.

    Raises UserError where none has that, or none beside the workers, in a cluster that never
    `grows`.
    """
    evaluation = experiment.evaluation
    resources = experiment.resources
    need = {name: number for name, number in evaluation.resources.on_node().items() if number}
    if evaluation.mode == "inline" or not need:
        return list(nodes)
    for index, node in enumerate(nodes):
        if all(node.get(name, 0) >= number for name, number in need.items()):
            rest = {name: number - need.get(name, 0) for name, number in node.items()}
            left = [*nodes[:index], rest, *nodes[index + 1 :]]
            fit = _workers_that_fit(resources, cpu_share(resources, left), left)
            if fit >= resources.min_workers:
                return left
    if grows:
        return list(nodes)
    reserved = evaluation.resources
    workers = resources.min_workers
    missing = sorted(set(reserved.custom).difference(*nodes))
    if missing:
        remedy = f"start a node with {missing[0]}"
    else:
        remedy = "ask for less, or add a node"
    raise UserError(
        f"evaluation.resources={reserved} are on no node beside {workers} "
        f"worker{'s' if workers > 1 else ''}: the cluster has {_sizes(nodes)}; {remedy}."
    )


def waiting_message(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> str:
    """Message for a run that has to wait for further nodes; empty where the present ones
    suffice.
    """
    workers = resources.min_workers
    if _workers_that_fit(resources, share, nodes) >= workers:
        return ""
    return (
        f"waiting for the cluster to grow: resources.workers={workers} at "
        f"{_each(resources, share)} each (CPUs are set by resources.cpus_per_worker); it has "
        f"{_sizes(nodes)}."
    )


def _each(resources: Resources, share: CpuShare) -> str:
    text = f"{share.cpus:g} CPU{'s' if share.cpus > 1 else ''}"
    if resources.gpus_per_worker:
        text += f" and {resources.gpus_per_worker:g} GPU"
    return text


def _sizes(nodes: Sequence[Node]) -> str:
    return (
        "; ".join(f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs" for node in nodes)
        or "no nodes"
    )
