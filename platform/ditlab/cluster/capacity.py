"""Capacity of a cluster: workers that fit on its nodes, those that its autoscaler may add included, and their cores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from ruamel.yaml import YAML

from ditlab.cluster.ray_internals import ray_internal
from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment
from ditlab.spec.resources import Resources

Node = Mapping[str, float]
"""Resources of a node by Ray's names: `CPU`, `GPU`."""
NO_NODE_LIMIT = 10_000  # nodes, for a type without a limit of its own
HEAD_RESOURCE = "node:__internal_head__"
"""Resource that Ray gives to the head alone."""


@dataclass(frozen=True)
class NodeType:
    """Nodes of one type that the cluster's autoscaler may add."""

    name: str
    node: Node
    count: int


@dataclass(frozen=True)
class Growth:
    """Nodes that the cluster's autoscaler may add."""

    types: tuple[NodeType, ...] = ()
    most: int = 0
    """Largest number of nodes of all types together."""
    is_known: bool = True
    """False where there is an autoscaler whose limits cannot be found: a run then waits, and is not refused."""

    def beside(self, nodes: Sequence[Node]) -> Growth:
        """Growth that is left beside these nodes. Types are told apart by CPUs and GPUs; the head is not counted."""
        workers = [node for node in nodes if HEAD_RESOURCE not in node]
        there = Counter((node.get("CPU", 0), node.get("GPU", 0)) for node in workers)
        types = []
        for each in self.types:
            size = (each.node.get("CPU", 0), each.node.get("GPU", 0))
            taken = min(there[size], each.count)
            there[size] -= taken
            if each.count > taken:
                types.append(replace(each, count=each.count - taken))
        return replace(self, types=tuple(types), most=max(0, self.most - len(workers)))

    def nodes(self) -> list[Node]:
        """Each node that may be added; of several types, the largest first."""
        every = [each.node for each in self.types for _ in range(min(each.count, self.most))]
        return sorted(every, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), reverse=True)[: self.most]

    def __str__(self) -> str:
        """Growth in a sentence: `may grow by 4 nodes of gpu.l40s (48 CPUs, 4 GPUs)`."""
        if not self.is_known:
            return "may grow"
        kinds = []
        for each in self.types:
            num = min(each.count, self.most)
            kinds.append(f"{num} node{'s' if num > 1 else ''} of {each.name} ({_sizes([each.node])})")
        return f"may grow by {' or '.join(kinds)}" if kinds and self.most else "may not grow"


NO_GROWTH = Growth()
"""Growth of a cluster of fixed size, or of one that has reached its limit."""


def has_autoscaler() -> bool:
    """Return True if the cluster has an autoscaler: placement requests that wait make it add nodes."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2())


def cluster_nodes() -> tuple[list[Node], Growth]:
    """Nodes of the connected cluster, and those that may join them."""
    import ray

    from ditlab.cluster.nodes import alive_nodes

    nodes = [node["Resources"] for node in alive_nodes()]
    return nodes, _limits(ray.get_runtime_context().gcs_address).beside(nodes) if has_autoscaler() else NO_GROWTH


@cache
def _limits(gcs_address: str) -> Growth:
    """Growth of a cluster from nothing, by its autoscaler's limits.

    The platform that runs Ray may have reported them. Else they are read on the head, where the autoscaler runs, as Ray
    keeps no copy of its settings.
    """
    from ditlab.cluster.nodes import alive_nodes, run_on_nodes

    reported = ray_internal("state.get_cluster_config")()
    if reported and reported.node_group_configs:
        types = [
            NodeType(each.name, dict(each.resources), NO_NODE_LIMIT if each.max_count < 0 else each.max_count)
            for each in reported.node_group_configs
        ]
        return Growth(tuple(types), NO_NODE_LIMIT)
    head = [node for node in alive_nodes() if HEAD_RESOURCE in node["Resources"]]
    found = [result.value for result in run_on_nodes(head, _autoscaler_config, gcs_address, timeout=60.0)]
    return limits_of(found[0]) if found and found[0] else Growth(is_known=False)


def limits_of(config: Mapping[str, Any]) -> Growth:
    """Growth of a cluster from nothing, by the configuration that Ray's cluster launcher gives to the autoscaler."""
    most = config.get("max_workers", NO_NODE_LIMIT)
    types = [
        NodeType(name, each.get("resources", {}), min(each.get("max_workers", most), most))
        for name, each in config["available_node_types"].items()
        if name != config["head_node_type"]
    ]
    return Growth(tuple(types), most)


def _autoscaler_config(gcs_address: str) -> dict[str, Any] | None:
    """Configuration of this cluster's autoscaler, read on the head from the autoscaler's command line."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        given = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        if given.get("gcs-address") == gcs_address and "autoscaling-config" in given:
            config: dict[str, Any] = YAML(typ="safe").load(Path(given["autoscaling-config"]).expanduser())
            return config
    return None


@dataclass(frozen=True)
class CpuShare:
    """Cores of its node that one worker gets."""

    threads: int
    cpus: float
    """CPUs as Ray counts them: less than 1 where more workers than cores run at once."""


def cpu_share(
    resources: Resources, nodes: Sequence[Node], concurrent: int | None = None, growth: Growth = NO_GROWTH
) -> CpuShare:
    """Cores of each worker: the number that `resources` names, else an even share of all cores, which fits on one node.

    A worker of a single run has at least one core, as Ray is given enough of them. `concurrent` trials of a sweep share
    the cores that exist. A worker with GPUs takes no larger part of its node's cores than of its GPUs, so that others
    fit beside it, and no node is added to a cluster for its cores alone.
    """
    if cpus := resources.cpus_per_worker:
        return CpuShare(cpus, float(cpus))
    every = [*nodes, *growth.nodes()]
    cores = [node.get("CPU", 0) for node in every]
    share = min(max(cores, default=1), sum(cores) / (resources.max_workers * (concurrent or 1)))
    if gpus := resources.gpus_per_worker:
        share = min([share, *(node.get("CPU", 0) * gpus / node["GPU"] for node in every if node.get("GPU", 0))])
    if share >= 1 or concurrent is None:
        return CpuShare(max(1, int(share)), float(max(1, int(share))))
    return CpuShare(1, max(0.01, math.floor(share * 100) / 100))


def runs_that_fit(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> int:
    """Number of such runs that fit on the nodes at once."""
    return _workers_that_fit(resources, share, nodes) // resources.min_workers


def _workers_that_fit(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> int:
    num = 0
    gpus = resources.gpus_per_worker
    for node in nodes:
        by_cpu = math.floor(node.get("CPU", 0) / share.cpus + 1e-6)
        # A part of a GPU lies on one of them.
        num += min(by_cpu, int(node.get("GPU", 0)) * math.floor(1 / gpus + 1e-6)) if gpus else by_cpu
    return num


def check_capacity(
    resources: Resources, nodes: Sequence[Node], share: CpuShare | None = None, growth: Growth = NO_GROWTH
) -> None:
    """Raises UserError where the workers do not fit on the present and possible nodes: Ray would wait for ever."""
    share = share or cpu_share(resources, nodes, growth=growth)
    fit = _workers_that_fit(resources, share, [*nodes, *growth.nodes()])
    if fit >= resources.min_workers or not growth.is_known:
        return
    remedy = f"set resources.workers to at most {fit}" if fit else "lower resources.cpus_per_worker or gpus_per_worker"
    grows = f" and {growth}" if growth is not NO_GROWTH else ""
    raise UserError(
        f"resources.workers={resources.min_workers} at {_each(resources, share)} each do not fit: the cluster has "
        f"{_sizes(nodes)}{grows}; {remedy}, or add nodes."
    )


def nodes_for_workers(experiment: Experiment, nodes: Sequence[Node], growth: Growth = NO_GROWTH) -> list[Node]:
    """Return the nodes without what an asynchronous evaluation reserves on one of them.

    Raises UserError where none has that, or none beside the workers.
    """
    evaluation = experiment.evaluation
    resources = experiment.resources
    need = {name: number for name, number in evaluation.resources.on_node().items() if number}
    if evaluation.mode == "inline" or not need:
        return list(nodes)

    def has_room(node: Node) -> bool:
        return all(node.get(name, 0) >= number for name, number in need.items())

    for index, node in enumerate(nodes):
        if has_room(node):
            rest = {name: number - need.get(name, 0) for name, number in node.items()}
            left = [*nodes[:index], rest, *nodes[index + 1 :]]
            share = cpu_share(resources, left, growth=growth)
            if _workers_that_fit(resources, share, [*left, *growth.nodes()]) >= resources.min_workers:
                return left
    if not growth.is_known or any(map(has_room, growth.nodes())):
        return list(nodes)
    raise _no_room_beside(experiment, nodes)


def _no_room_beside(experiment: Experiment, nodes: Sequence[Node]) -> UserError:
    """Return the error for an evaluation that no node has room for beside the workers."""
    reserved = experiment.evaluation.resources
    workers = experiment.resources.min_workers
    missing = sorted(set(reserved.custom).difference(*nodes))
    remedy = f"start a node with {missing[0]}" if missing else "ask for less, or add a node"
    return UserError(
        f"evaluation.resources={reserved} are on no node beside {workers} worker{'s' if workers > 1 else ''}: the "
        f"cluster has {_sizes(nodes)}; {remedy}."
    )


def waiting_message(resources: Resources, share: CpuShare, nodes: Sequence[Node], growth: Growth) -> str:
    """Message for a run that has to wait for further nodes; empty where the present ones suffice."""
    workers = resources.min_workers
    each = _each(resources, share)
    if _workers_that_fit(resources, share, nodes) >= workers:
        return ""
    need = f"{workers} workers need {each} each" if workers > 1 else f"a worker needs {each}"
    return f"waiting for the cluster: {need}; it has {_sizes(nodes)} and {growth}."


def _each(resources: Resources, share: CpuShare) -> str:
    gpus = resources.gpus_per_worker
    return f"{share.cpus:g} CPU{'s' if share.cpus > 1 else ''}" + (f" and {gpus:g} GPU" if gpus else "")


def _sizes(nodes: Sequence[Node]) -> str:
    return "; ".join(f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs" for node in nodes) or "no nodes"
