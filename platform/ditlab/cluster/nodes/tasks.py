"""Runs a function once on each node, all at once, with an end to waiting."""

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
    """Of one node."""

    node: NodeRow
    value: Any
    problem: str = ""
    """Why there is none."""
    asked: float = 0.0
    heard: float = 0.0
    """Seconds since 1970, by this process's clock."""

    @property
    def name(self) -> str:
        return node_label(self.node)


def node_label(node: NodeRow) -> str:
    """For people: `gpu-3 (10.0.0.7/3f9a01bc)`, the last the beginning of Ray's id."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}/{node['NodeID'][:8]})"


def node_options(node: NodeRow, **more: Any) -> dict[str, Any]:
    """Ray's options for a task or actor on this node and no other, which waits for no CPU."""
    return {
        "num_cpus": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        **more,
    }


def run_on_nodes(
    nodes: Sequence[NodeRow], function: Callable[..., Any], *arguments: Any, patience: float, by_value: bool = False
) -> list[TaskResult]:
    """`function(*arguments)` on each node, in the order of the nodes. `by_value` sends the function's module along, for
    nodes that have none of ours."""
    module = sys.modules[function.__module__]
    if by_value:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        task, asked = ray.remote(function), time.time()
        tasks = {task.options(max_retries=0, **node_options(node)).remote(*arguments): node for node in nodes}
    finally:
        if by_value:
            ray.cloudpickle.unregister_pickle_by_value(module)
    return collect(tasks, patience, asked)


def collect(tasks: dict[Any, NodeRow], patience: float, asked: float) -> list[TaskResult]:
    """Waits for tasks of nodes; those that take longer than `patience` seconds since `asked` are given up."""
    found, waiting = {}, list(tasks)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, asked + patience - time.time()))
        if not done:
            break
        try:
            answer = TaskResult(tasks[done[0]], ray.get(done[0]), "", asked, time.time())
        except ray.exceptions.RayError as error:
            answer = TaskResult(tasks[done[0]], None, _reason(error))
        found[done[0]] = answer
    for each in waiting:
        ray.cancel(each)
        found[each] = TaskResult(tasks[each], None, f"no answer in {patience:.0f} s")
    return [found[each] for each in tasks]


def _reason(error: Exception) -> str:
    """What a task raised, or what became of it, in a line."""
    cause = getattr(error, "cause", None)
    return first_line(cause or error)
