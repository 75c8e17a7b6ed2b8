"""What the cluster's nodes are and do: alive, about to be taken away; and an end for a process on one of them."""

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import psutil
import ray


def alive_nodes() -> list[dict[str, Any]]:
    """Ray's description of each node that is there."""
    return [node for node in ray.nodes() if node["Alive"]]


def node_name() -> str:
    """Of this process's node, for people: its address and the beginning of Ray's id, `10.0.0.7/3f9a01bc`."""
    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


def alive_ids() -> set[str]:
    """Ray's ids of the nodes that are there."""
    return {node["NodeID"] for node in alive_nodes()}


def answering_ids() -> set[str]:
    """Of those, the nodes that take a connection: Ray gives a silent node up for lost after 15 s and more, when all
    that was connected to it has known for long."""
    nodes = alive_nodes()
    answering = {node["NodeID"] for node in nodes if _answers(node)}
    return answering or {node["NodeID"] for node in nodes}  # from outside the cluster's network none can be reached


def count_anew(patience: float = 60.0) -> None:
    """Makes Ray Train know which nodes an elastic run may use, when Ray has given up those that are lost.

    By itself it looks every 20 s, and a group that is to start on a lost node waits a minute for its room.
    """
    from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
        get_or_create_autoscaling_coordinator,
    )

    deadline = time.monotonic() + patience
    while alive_ids() - answering_ids() and time.monotonic() < deadline:
        time.sleep(0.2)
    coordinator: Any = get_or_create_autoscaling_coordinator()
    ray.get(coordinator.get_reserved_resources.remote("ditlab", recompute=True), timeout=20)


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


def _answers(node: dict[str, Any], timeout: float = 2.0) -> bool:
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), timeout).close()
    except OSError:
        return False
    return True


def _kill_here(pid: int, born: float) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.create_time() == born:  # or the number is another process's by now
            process.kill()
