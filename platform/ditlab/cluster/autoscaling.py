"""Nodes that the cluster's autoscaler may still add, by its own configuration."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ruamel.yaml import YAML

from ditlab.cluster.capacity import NO_GROWTH, Growth, Node, NodeType
from ditlab.cluster.ray_internals import cluster_state

NO_NODE_LIMIT = 10_000  # nodes, for a type without a limit of its own
HEAD_RESOURCE = "node:__internal_head__"
"""Resource that Ray gives to the head alone."""


@dataclass(frozen=True)
class AutoscalerLimits:
    """Node types by name: a node's resources, and the largest number of such nodes."""

    types: Mapping[str, tuple[Node, int]]
    most: int
    """Largest number of nodes of all types together."""


def has_autoscaler() -> bool:
    """Return True if the cluster has an autoscaler: placement requests that wait make it add nodes."""
    return bool(is_autoscaler_v2())


def possible_growth(nodes: Sequence[Node]) -> Growth:
    """Nodes that may join the present ones."""
    if not has_autoscaler():
        return NO_GROWTH
    limits = _limits(ray.get_runtime_context().gcs_address)
    return Growth(is_known=False) if limits is None else growth_within(limits, nodes)


def growth_within(limits: AutoscalerLimits, nodes: Sequence[Node]) -> Growth:
    """Nodes that the limits still allow. Types are told apart by CPUs and GPUs; the head is not counted."""
    workers = [node for node in nodes if HEAD_RESOURCE not in node]
    there = Counter((node.get("CPU", 0), node.get("GPU", 0)) for node in workers)
    types = []
    for name, (node, most) in limits.types.items():
        size = (node.get("CPU", 0), node.get("GPU", 0))
        taken = min(there[size], most)
        there[size] -= taken
        if most > taken:
            types.append(NodeType(name, node, most - taken))
    return Growth(tuple(types), max(0, limits.most - len(workers)))


@cache
def _limits(gcs_address: str) -> AutoscalerLimits | None:
    """Limits of the cluster's autoscaler, None where they cannot be found.

    Read on the head, where the autoscaler runs, as Ray keeps no copy of its settings.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if reported := _reported():
        return reported
    head = next((node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD_RESOURCE in node["Resources"]), None)
    if head is None:
        return None
    place = NodeAffinitySchedulingStrategy(head, soft=False)
    asked = ray.remote(_read_here).options(num_cpus=0, scheduling_strategy=place).remote(gcs_address)
    try:
        found = ray.get(asked, timeout=60)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayTaskError):
        return None  # the run waits for what it needs, and is not refused
    return None if found is None else limits_of(found)


def limits_of(config: Mapping[str, Any]) -> AutoscalerLimits:
    """Limits in the configuration that Ray's cluster launcher gives to the autoscaler."""
    most = config.get("max_workers", NO_NODE_LIMIT)
    types = {
        name: (each.get("resources", {}), min(each.get("max_workers", most), most))
        for name, each in config["available_node_types"].items()
        if name != config["head_node_type"]
    }
    return AutoscalerLimits(types, most)


def _reported() -> AutoscalerLimits | None:
    """Limits that the platform which runs Ray has reported to it; None without a report."""
    config = cluster_state().get_cluster_config()
    if config is None or not config.node_group_configs:
        return None
    groups = {group.name: (dict(group.resources), group.max_count) for group in config.node_group_configs}
    types = {name: (node, NO_NODE_LIMIT if most < 0 else most) for name, (node, most) in groups.items()}
    return AutoscalerLimits(types, NO_NODE_LIMIT)


def _read_here(gcs_address: str) -> dict[str, Any] | None:
    """Configuration of this cluster's autoscaler, read on the head from the autoscaler's command line."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        given = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        if given.get("gcs-address") == gcs_address and "autoscaling-config" in given:
            config: dict[str, Any] = YAML(typ="safe").load(Path(given["autoscaling-config"]).expanduser())
            return config
    return None
