"""How many workers fit on which nodes, those there are and those that may come, and how many cores each gets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment

Node = Mapping[str, float]
"""What a node has, by Ray's names: `CPU`, `GPU`."""


@dataclass(frozen=True)
class NodeType:
    """Nodes of one kind that the cluster's autoscaler may still add."""

    name: str
    node: Node
    count: int


@dataclass(frozen=True)
class Growth:
    """What the cluster's autoscaler may still add."""

    types: tuple[NodeType, ...] = ()
    most: int = 0
    """Nodes of all types together."""
    is_known: bool = True
    """False where there is an autoscaler and nobody can tell from here what it may add."""

    def nodes(self) -> list[Node]:
        """Each node that may come; of several types, the roomiest first."""
        every = [each.node for each in self.types for _ in range(min(each.count, self.most))]
        return sorted(every, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), reverse=True)[: self.most]

    def __str__(self) -> str:
        """For people: `may grow by 4 nodes of gpu.l40s (48 CPUs, 4 GPUs)`."""
        if not self.is_known:
            return "may grow"
        counts = [min(one.count, self.most) for one in self.types]
        kinds = [
            f"{num} node{'s' if num > 1 else ''} of {one.name} ({_size(one.node)})"
            for num, one in zip(counts, self.types, strict=True)
        ]
        return f"may grow by {' or '.join(kinds)}" if kinds and self.most else "may not grow"


NONE = Growth()
"""A cluster of fixed size, or one that is as large as it may be."""


@dataclass(frozen=True)
class Share:
    """What one worker gets of its node's cores."""

    threads: int
    cpus: float
    """As Ray counts them: less than 1 where more workers than cores run at once."""


def worker_share(
    experiment: Experiment, nodes: Sequence[Node], concurrent: int | None = None, growth: Growth = NONE
) -> Share:
    """What the spec says, else an even share of all cores, which fits on one node.

    Of a run alone, a worker has a core at least, as Ray is told that there are enough of them. `concurrent` trials of a
    sweep share the cores that there are. A worker with GPUs takes no larger part of its node's cores than of its GPUs:
    others find room beside it, and no node is added to a cluster for its cores alone.
    """
    if cpus := experiment.resources.cpus_per_worker:
        return Share(cpus, float(cpus))
    every = [*nodes, *growth.nodes()]
    cores = [node.get("CPU", 0) for node in every]
    share = min(max(cores, default=1), sum(cores) / (experiment.resources.max_workers * (concurrent or 1)))
    gpus = experiment.resources.gpus_per_worker
    if gpus:
        share = min([share, *(node.get("CPU", 0) * gpus / node["GPU"] for node in every if node.get("GPU", 0))])
    if share >= 1 or concurrent is None:
        return Share(max(1, int(share)), float(max(1, int(share))))
    return Share(1, max(0.01, math.floor(share * 100) / 100))


def runs_that_fit(experiment: Experiment, share: Share, nodes: Sequence[Node]) -> int:
    """How many such runs the nodes can hold at once."""
    return _fit(experiment, share, nodes) // experiment.resources.min_workers


def check_capacity(
    experiment: Experiment, nodes: Sequence[Node], share: Share | None = None, growth: Growth = NONE
) -> None:
    """Raises UserError where the nodes, with all that may come, cannot hold all workers at once: Ray would wait for
    ever."""
    workers = experiment.resources.min_workers
    share = share or worker_share(experiment, nodes, growth=growth)
    fit = _fit(experiment, share, [*nodes, *growth.nodes()])
    if fit >= workers or not growth.is_known:
        return
    remedy = f"set resources.workers to at most {fit}" if fit else "lower resources.cpus_per_worker or gpus_per_worker"
    grows = f" and {growth}" if growth is not NONE else ""
    raise UserError(
        f"resources.workers={workers} at {_each(experiment, share)} each do not fit: the cluster has {_sizes(nodes)}"
        f"{grows}; {remedy}, or add nodes."
    )


def waiting_line(experiment: Experiment, share: Share, nodes: Sequence[Node], growth: Growth) -> str:
    """What a person hears where the nodes that are there cannot hold the workers yet; empty where they can."""
    workers = experiment.resources.min_workers
    if _fit(experiment, share, nodes) >= workers:
        return ""
    need = f"{workers} workers need {_each(experiment, share)} each" if workers > 1 else (
        f"a worker needs {_each(experiment, share)}")  # fmt: skip
    return f"waiting for the cluster: {need}; it has {_sizes(nodes)} and {growth}."


def _fit(experiment: Experiment, share: Share, nodes: Sequence[Node]) -> int:
    """Workers that the nodes hold."""
    gpus = experiment.resources.gpus_per_worker
    num = 0
    for node in nodes:
        by_cpu = math.floor(node.get("CPU", 0) / share.cpus + 1e-6)
        # A part of a GPU lies on one of them.
        num += min(by_cpu, int(node.get("GPU", 0)) * math.floor(1 / gpus + 1e-6)) if gpus else by_cpu
    return num


def _each(experiment: Experiment, share: Share) -> str:
    gpus = experiment.resources.gpus_per_worker
    return f"{share.cpus:g} CPU{'s' if share.cpus > 1 else ''}" + (f" and {gpus:g} GPU" if gpus else "")


def _size(node: Node) -> str:
    return f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs"


def _sizes(nodes: Sequence[Node]) -> str:
    return "; ".join(_size(node) for node in nodes) or "no nodes"
