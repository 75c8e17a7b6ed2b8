"""How many workers fit on which nodes, and how many cores each gets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment

Node = Mapping[str, float]
"""What a node has, by Ray's names: `CPU`, `GPU`."""


@dataclass(frozen=True)
class Share:
    """What one worker gets of its node's cores."""

    threads: int
    cpus: float
    """As Ray counts them: less than 1 where more workers than cores run at once."""


def worker_share(experiment: Experiment, nodes: Sequence[Node], concurrent: int | None = None) -> Share:
    """What the spec says, else an even share of all cores, which fits on one node.

    Of a run alone, a worker has a core at least, as Ray is told that there are enough of them. `concurrent` trials of a
    sweep share the cores that there are.
    """
    if cpus := experiment.resources.cpus_per_worker:
        return Share(cpus, float(cpus))
    cores = [node.get("CPU", 0) for node in nodes]
    share = min(max(cores, default=1), sum(cores) / (experiment.resources.max_workers * (concurrent or 1)))
    if share >= 1 or concurrent is None:
        return Share(max(1, int(share)), float(max(1, int(share))))
    return Share(1, max(0.01, math.floor(share * 100) / 100))


def runs_that_fit(experiment: Experiment, share: Share, nodes: Sequence[Node]) -> int:
    """How many such runs the nodes as they stand can hold at once."""
    return _fit(experiment, share, nodes) // experiment.resources.min_workers


def check_capacity(experiment: Experiment, nodes: Sequence[Node], share: Share | None = None) -> None:
    """Raises UserError where the nodes as they stand cannot hold all workers at once: Ray would wait for ever."""
    workers, gpus = experiment.resources.min_workers, experiment.resources.gpus_per_worker
    share = share or worker_share(experiment, nodes)
    fit = _fit(experiment, share, nodes)
    if fit >= workers:
        return
    each = f"{share.cpus:g} CPU{'s' if share.cpus > 1 else ''}" + (f" and {gpus:g} GPU" if gpus else "")
    have = "; ".join(f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs" for node in nodes) or "no nodes"
    remedy = f"set resources.workers to at most {fit}" if fit else "lower resources.cpus_per_worker or gpus_per_worker"
    raise UserError(
        f"resources.workers={workers} at {each} each do not fit: the cluster has {have}; {remedy}, or add nodes."
    )


def _fit(experiment: Experiment, share: Share, nodes: Sequence[Node]) -> int:
    """Workers that the nodes hold."""
    gpus = experiment.resources.gpus_per_worker
    num = 0
    for node in nodes:
        by_cpu = math.floor(node.get("CPU", 0) / share.cpus + 1e-6)
        # A part of a GPU lies on one of them.
        num += min(by_cpu, int(node.get("GPU", 0)) * math.floor(1 / gpus + 1e-6)) if gpus else by_cpu
    return num
