"""Nodes of a cluster: those alive, answering or about to go, the processes on them, and tasks that
run on each.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ditlab.cluster.ray_internals import ray_internal
from ditlab.errors import first_line

REFRESH_TIMEOUT = 60.0  # seconds for Ray to declare silent nodes lost
NodeRow = dict[str, Any]
"""Ray's description of a node."""


def alive_nodes() -> list[NodeRow]:
    """Ray's description of each node that is alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def node_name() -> str:
    """Name of this process's node in messages: its address and the beginning of Ray's id,
    `10.0.0.7/3f9a01bc`.
    """
    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


def alive_ids() -> set[str]:
    """Ray's ids of the nodes that are alive."""
    return {node["NodeID"] for node in alive_nodes()}


def answering_ids() -> set[str]:
    """Ray's ids of the alive nodes that accept a connection.

    Ray declares a silent node lost after 15 s and more, long after all that was connected to it has
    noticed.
    """
    nodes = alive_nodes()
    answering = set()
    for node in nodes:
        place = (node["NodeManagerAddress"], node["NodeManagerPort"])
        with suppress(OSError):
            socket.create_connection(place, 2.0).close()
            answering.add(node["NodeID"])
    # from outside the cluster's network none can be reached
    return answering or {node["NodeID"] for node in nodes}


def wait_for(is_there: Callable[[], bool], timeout: float, pause: float = 0.2) -> bool:
    """Wait until something is there, for `timeout` seconds at most, and ask every `pause` seconds;
    return whether it is there.
    """
    deadline = time.monotonic() + timeout
    while not (found := is_there()) and time.monotonic() < deadline:
        time.sleep(pause)
    return found


def refresh_node_count() -> None:
    """Make Ray Train recount the nodes that an elastic run may use, once Ray has declared silent
    nodes lost.

    By itself it counts every 20 s, and a group that is to start on a lost node waits a minute for
    its resources.
    """
    wait_for(lambda: not alive_ids() - answering_ids(), REFRESH_TIMEOUT)
    coordinator = ray_internal("get_or_create_autoscaling_coordinator")()
    ray.get(coordinator.get_reserved_resources.remote("ditlab", recompute=True), timeout=20)


def kill_processes(processes: Iterable[tuple[str, int, float]]) -> None:
    """Send SIGKILL to processes, each given as (node id, pid, start time).

    A node that does not answer is left to Ray's own health checks.
    """
    alive = {node["NodeID"]: node for node in alive_nodes()}
    tasks = [
        start_task(_kill_here, alive[node], pid, start)
        for node, pid, start in processes
        if node in alive
    ]
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=20)


def _kill_here(pid: int, start: float) -> None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.create_time() == start:  # or the number is another process's by now
            process.kill()


@dataclass(frozen=True)
class TaskResult:
    """Result of a task on one node."""

    node: NodeRow
    value: Any
    problem: str = ""
    """Reason why there is no value; empty where there is one."""
    received: float = 0.0
    """Seconds since 1970, by this process's clock."""

    @property
    def name(self) -> str:
        """Name of the node in messages."""
        return node_label(self.node)


def node_label(node: NodeRow) -> str:
    """Name of a node in messages: `gpu-3 (10.0.0.7/3f9a01bc)`, the last part the beginning of Ray's
    id.
    """
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}/{node['NodeID'][:8]})"


def run_on_nodes(
    nodes: Sequence[NodeRow],
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float,
    by_value: bool = False,
) -> list[TaskResult]:
    """Run `function(*arguments)` on each node; returns the results in the order of the nodes.

    `by_value` sends the function's module along, for nodes on which DiTLab is not installed.
    """
    module = sys.modules[function.__module__]
    if by_value:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        tasks = {start_task(function, node, *arguments): node for node in nodes}
    finally:
        if by_value:
            ray.cloudpickle.unregister_pickle_by_value(module)
    return collect_results(tasks, timeout)


def start_task(function: Callable[..., Any], node: NodeRow, *arguments: Any) -> Any:
    """Start `function(*arguments)` on a node, where it waits for no CPU; returns Ray's reference to
    its result.
    """
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(function).options(
        max_retries=0, num_cpus=0, num_gpus=0, scheduling_strategy=there
    )
    return task.remote(*arguments)


def collect_results(tasks: dict[Any, NodeRow], timeout: float) -> list[TaskResult]:
    """Wait for tasks, given with their nodes; cancel those that take longer than `timeout` seconds
    from now.
    """
    deadline = time.monotonic() + timeout
    found = {}
    waiting = list(tasks)
    while waiting:
        done, waiting = ray.wait(
            waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic())
        )
        if not done:
            break
        value = None
        problem = ""
        try:
            value = ray.get(done[0])
        except ray.exceptions.RayError as error:
            # what the task raised, or what became of it
            problem = first_line(getattr(error, "cause", None) or error)
        found[done[0]] = TaskResult(tasks[done[0]], value, problem, time.time())
    for each in waiting:
        ray.cancel(each)
        found[each] = TaskResult(tasks[each], None, f"no answer in {timeout:.0f} s", time.time())
    return [found[each] for each in tasks]
