"""Tasks that run once on each of several nodes, all at once, with a timeout."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ditlab.errors import first_line

NodeRow = dict[str, Any]
"""Ray's description of a node."""


@dataclass(frozen=True)
class TaskResult:
    """Result of a task on one node."""

    node: NodeRow
    value: Any
    problem: str = ""
    """Reason why there is no value; empty where there is one."""
    sent: float = 0.0
    received: float = 0.0
    """Seconds since 1970, by this process's clock."""

    @property
    def name(self) -> str:
        """Name of the node in messages."""
        return node_label(self.node)


def node_label(node: NodeRow) -> str:
    """Name of a node in messages: `gpu-3 (10.0.0.7/3f9a01bc)`, the last part the beginning of Ray's id."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}/{node['NodeID'][:8]})"


def node_options(node: NodeRow, **more: Any) -> dict[str, Any]:
    """Ray's options for a task or actor that runs on this node only and waits for no CPU."""
    return {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        **more,
    }


def run_on_nodes(
    nodes: Sequence[NodeRow], function: Callable[..., Any], *arguments: Any, timeout: float, by_value: bool = False
) -> list[TaskResult]:
    """Run `function(*arguments)` on each node; returns the results in the order of the nodes.

    `by_value` sends the function's module along, for nodes on which DiTLab is not installed.
    """
    module = sys.modules[function.__module__]
    if by_value:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        task, sent = ray.remote(function), time.time()
        tasks = {task.options(max_retries=0, **node_options(node)).remote(*arguments): node for node in nodes}
    finally:
        if by_value:
            ray.cloudpickle.unregister_pickle_by_value(module)
    return collect_results(tasks, timeout, sent)


def start_task(function: Callable[..., Any], node: NodeRow, *arguments: Any, num_gpus: int = 0) -> Any:
    """Start `function(*arguments)` on a node; returns Ray's reference to its result."""
    return ray.remote(function).options(max_retries=0, **node_options(node, num_gpus=num_gpus)).remote(*arguments)


def collect_results(tasks: dict[Any, NodeRow], timeout: float, sent: float | None = None) -> list[TaskResult]:
    """Wait for tasks, given with their nodes; cancel those that take longer than `timeout` seconds since `sent`."""
    sent = time.time() if sent is None else sent
    found, waiting = {}, list(tasks)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, sent + timeout - time.time()))
        if not done:
            break
        try:
            result = TaskResult(tasks[done[0]], ray.get(done[0]), "", sent, time.time())
        except ray.exceptions.RayError as error:
            result = TaskResult(tasks[done[0]], None, _reason(error), sent, time.time())
        found[done[0]] = result
    for each in waiting:
        ray.cancel(each)
        found[each] = TaskResult(tasks[each], None, f"no answer in {timeout:.0f} s", sent, time.time())
    return [found[each] for each in tasks]


def _reason(error: Exception) -> str:
    """First line of the exception that a task raised, or of what became of the task."""
    return first_line(getattr(error, "cause", None) or error)
