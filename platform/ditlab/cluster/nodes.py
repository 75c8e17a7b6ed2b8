"""What the cluster's nodes are and do: alive, about to be taken away; and an end for a process on one of them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil
import ray


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's description of each node that is there."""
    return [node for node in ray.nodes() if node["Alive"]]


def alive_ids() -> set[str]:
    """Ray's ids of the nodes that are there."""
    return {node["NodeID"] for node in alive_nodes()}


def draining_ids() -> set[str]:
    """Nodes that the cluster has announced it will take away (a spot instance's notice, a scale-down)."""
    state: Any = ray._private.state.state  # what Ray Train's own watcher asks; no public name exists
    return set(state.get_draining_nodes())


def give_back(placement_group: str) -> None:
    """The room of a job whose leader died: Ray keeps it reserved, where it has no dashboard to ask who is alive."""
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(placement_group))))


def kill(places: Iterable[tuple[str, int, float]], timeout: float = 20.0) -> None:
    """SIGKILL for processes, (node id, pid, time of its start) each. A node that does not answer is left to Ray's own
    health checks."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = alive_ids()
    tasks = [
        ray.remote(_kill_here)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote(pid, born)
        for node, pid, born in places
        if node in there
    ]
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=timeout)


def _kill_here(pid: int, born: float) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.create_time() == born:  # or the number is another process's by now
            process.kill()
