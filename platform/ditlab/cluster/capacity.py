"""How many workers fit on which nodes, and how many cores each gets."""

from collections.abc import Mapping, Sequence

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment

Node = Mapping[str, float]
"""What a node has, by Ray's names: `CPU`, `GPU`."""


def cpus_per_worker(experiment: Experiment, nodes: Sequence[Node]) -> int:
    """CPU cores, and threads, of each worker: what the spec says, else an even share of all that fits on one node."""
    cores = [node.get("CPU", 0) for node in nodes]
    share = min(max(cores, default=1), sum(cores) / experiment.resources.max_workers)
    return experiment.resources.cpus_per_worker or max(1, int(share))


def check_capacity(experiment: Experiment, nodes: Sequence[Node]) -> None:
    """Raises UserError where the nodes as they stand cannot hold all workers at once: Ray would wait for ever."""
    workers, gpus = experiment.resources.min_workers, experiment.resources.gpus_per_worker
    cpus = cpus_per_worker(experiment, nodes)
    fit = sum(_workers_on(node, cpus, gpus) for node in nodes)
    if fit >= workers:
        return
    each = f"{cpus} CPU{'s' if cpus > 1 else ''}" + (" and 1 GPU" if gpus else "")
    have = "; ".join(f"{node.get('CPU', 0):.0f} CPUs, {node.get('GPU', 0):.0f} GPUs" for node in nodes) or "no nodes"
    remedy = f"set resources.workers to at most {fit}" if fit else "lower resources.cpus_per_worker or gpus_per_worker"
    raise UserError(
        f"resources.workers={workers} at {each} each do not fit: the cluster has {have}; {remedy}, or add nodes."
    )


def _workers_on(node: Node, cpus: int, gpus: int) -> int:
    by_cpu = int(node.get("CPU", 0) // cpus)
    return min(by_cpu, int(node.get("GPU", 0) // gpus)) if gpus else by_cpu
