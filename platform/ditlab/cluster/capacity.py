"""Capacity of a cluster: workers that fit on its nodes, present and possible, and cores for each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditlab.errors import UserError
from ditlab.spec.resources import Resources

Node = Mapping[str, float]
"""Resources of a node by Ray's names: `CPU`, `GPU`."""


@dataclass(frozen=True)
class NodeType:
    """Nodes of one type that the cluster's autoscaler may still add."""

    name: str
    node: Node
    count: int


@dataclass(frozen=True)
class Growth:
    """Nodes that the cluster's autoscaler may still add."""

    types: tuple[NodeType, ...] = ()
    most: int = 0
    """Largest number of nodes of all types together."""
    is_known: bool = True
    """False where there is an autoscaler whose limits cannot be found."""

    def nodes(self) -> list[Node]:
        """Each node that may be added; of several types, the largest first."""
        every = [each.node for each in self.types for _ in range(min(each.count, self.most))]
        return sorted(every, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), reverse=True)[: self.most]

    def __str__(self) -> str:
        """Growth in a sentence: `may grow by 4 nodes of gpu.l40s (48 CPUs, 4 GPUs)`."""
        if not self.is_known:
            return "may grow"
        counts = [min(one.count, self.most) for one in self.types]
        kinds = [
            f"{num} node{'s' if num > 1 else ''} of {one.name} ({_size(one.node)})"
            for num, one in zip(counts, self.types, strict=True)
        ]
        return f"may grow by {' or '.join(kinds)}" if kinds and self.most else "may not grow"


NO_GROWTH = Growth()
"""Growth of a cluster of fixed size, or of one that has reached its limit."""


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
    gpus = resources.gpus_per_worker
    if gpus:
        share = min([share, *(node.get("CPU", 0) * gpus / node["GPU"] for node in every if node.get("GPU", 0))])
    if share >= 1 or concurrent is None:
        return CpuShare(max(1, int(share)), float(max(1, int(share))))
    return CpuShare(1, max(0.01, math.floor(share * 100) / 100))


def runs_that_fit(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> int:
    """Number of such runs that fit on the nodes at once."""
    return _fit(resources, share, nodes) // resources.min_workers


def check_capacity(
    resources: Resources, nodes: Sequence[Node], share: CpuShare | None = None, growth: Growth = NO_GROWTH
) -> None:
    """Raises UserError where the workers do not fit on the present and possible nodes: Ray would wait for ever."""
    workers = resources.min_workers
    share = share or cpu_share(resources, nodes, growth=growth)
    fit = _fit(resources, share, [*nodes, *growth.nodes()])
    if fit >= workers or not growth.is_known:
        return
    remedy = f"set resources.workers to at most {fit}" if fit else "lower resources.cpus_per_worker or gpus_per_worker"
    grows = f" and {growth}" if growth is not NO_GROWTH else ""
    raise UserError(
        f"resources.workers={workers} at {_each(resources, share)} each do not fit: the cluster has {_sizes(nodes)}"
        f"{grows}; {remedy}, or add nodes."
    )


def waiting_message(resources: Resources, share: CpuShare, nodes: Sequence[Node], growth: Growth) -> str:
    """Message for a run that has to wait for further nodes; empty where the present ones suffice."""
    workers = resources.min_workers
    if _fit(resources, share, nodes) >= workers:
        return ""
    need = f"{workers} workers need {_each(resources, share)} each" if workers > 1 else (
        f"a worker needs {_each(resources, share)}")  # fmt: skip
    return f"waiting for the cluster: {need}; it has {_sizes(nodes)} and {growth}."


def _fit(resources: Resources, share: CpuShare, nodes: Sequence[Node]) -> int:
    """Number of workers that fit on the nodes."""
    gpus = resources.gpus_per_worker
    num = 0
    for node in nodes:
        by_cpu = math.floor(node.get("CPU", 0) / share.cpus + 1e-6)
        # A part of a GPU lies on one of them.
        num += min(by_cpu, int(node.get("GPU", 0)) * math.floor(1 / gpus + 1e-6)) if gpus else by_cpu
    return num


def _each(resources: Resources, share: CpuShare) -> str:
    """Resources of each worker, for messages."""
    gpus = resources.gpus_per_worker
    return f"{share.cpus:g} CPU{'s' if share.cpus > 1 else ''}" + (f" and {gpus:g} GPU" if gpus else "")


def _size(node: Node) -> str:
    """Resources of a node, for messages."""
    return f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs"


def _sizes(nodes: Sequence[Node]) -> str:
    """Resources of several nodes, for messages."""
    return "; ".join(_size(node) for node in nodes) or "no nodes"
