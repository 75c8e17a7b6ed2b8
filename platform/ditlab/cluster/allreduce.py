"""Measurement of all-reduce between nodes, as nccl-tests does it; where it fails, of connections pair by pair."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import Any

import ray
import torch
from torch import distributed

from ditlab.cluster.nodes import NodeRow, collect_results, node_options

REPEATS = {1 << 20: 20, 64 << 20: 3}
"""Repeats by bytes: latency shows in the first, bandwidth in the second."""
COLLECTIVE_TIMEOUT = 30.0  # seconds for the members to form a process group, and for each collective
CONNECTION_TIMEOUT = 5.0  # seconds for a connection between two nodes
PAIRS_TIMEOUT = 60.0  # seconds for all connections


@dataclass(frozen=True)
class AllReduceResult:
    """Result of the whole group."""

    seconds: dict[int, float]
    """Seconds of one all-reduce by its bytes, of the slowest member."""
    is_right: bool
    """True if every member had the right sum."""
    num_members: int
    problems: list[str]
    """Sentences without full stop, one for each member that failed; the other fields mean nothing then."""

    def bus_bandwidth(self, size: int) -> float:
        """Bus bandwidth in bytes a second, as nccl-tests defines it: 2(n-1)/n of the message pass each link."""
        return 2 * (self.num_members - 1) / self.num_members * size / self.seconds[size]


class AllReduceMember:
    """One process of the group."""

    def listen(self) -> tuple[str, int]:
        """Accept connections from now on; returns address and port."""
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=1024)
        host, port = self._listener.getsockname()[:2]
        return host, port

    def free_port(self) -> tuple[str, int]:
        """Address of the member's node, and a port that is free there."""
        place = self.listen()
        self._listener.close()
        return place

    def measure(self, rank: int, world_size: int, host: str, port: int, use_gpu: bool) -> tuple[dict[int, float], bool]:
        """Seconds of an all-reduce by its bytes, and True if the sums were right."""
        device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
        distributed.init_process_group(
            "nccl" if use_gpu else "gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world_size,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT),
        )  # fmt: skip
        seconds = {}
        is_right = True
        try:
            for size, repeats in REPEATS.items():
                values = torch.full((size // 4,), float(rank + 1), device=device)
                distributed.all_reduce(values)
                is_right &= bool((values == world_size * (world_size + 1) / 2).all())
                values.zero_()  # sums of sums would overflow
                distributed.barrier()
                began = time.perf_counter()
                for _ in range(repeats):
                    distributed.all_reduce(values)
                if use_gpu:
                    torch.cuda.synchronize(device)
                seconds[size] = (time.perf_counter() - began) / repeats
        finally:
            distributed.destroy_process_group()
        return seconds, is_right

    def connection_error(self, host: str, port: int, timeout: float = CONNECTION_TIMEOUT) -> str:
        """Reason why a port of another node cannot be reached from this one; empty where it can."""
        try:
            socket.create_connection((host, port), timeout).close()
        except OSError as error:
            return str(error.strerror or error)
        return ""


def all_reduce(nodes: list[NodeRow], use_gpu: bool) -> AllReduceResult:
    """Measure an all-reduce over all nodes, with one process for each GPU, or for each node without `use_gpu`.

    Where it fails, `problems` names nodes that do not reach each other. Returns within a few times COLLECTIVE_TIMEOUT,
    whatever hangs.
    """
    places = [node for node in nodes for _ in range(int(node["Resources"].get("GPU", 0)) if use_gpu else 1)]
    with _members(places, use_gpu) as members:
        (first, *_) = collect_results({members[0].free_port.remote(): places[0]}, COLLECTIVE_TIMEOUT)
        if first.problem:
            busy = "; are its GPUs in use?" if use_gpu else ""
            problem = f"node {first.name} gives no process ({first.problem}{busy})"
            return AllReduceResult({}, False, len(places), [problem])
        tasks = {
            member.measure.remote(rank, len(places), *first.value, use_gpu): place
            for rank, (member, place) in enumerate(zip(members, places, strict=True))
        }
        results = collect_results(tasks, 3 * COLLECTIVE_TIMEOUT)
    # The first node to fail is named first: the others fail because they wait for it.
    if failures := sorted((result for result in results if result.problem), key=lambda result: result.received):
        pairs = unreachable_pairs(nodes)
        though = "" if pairs else ", though all nodes reach each other over TCP"
        failed = [f"node {result.name}: {result.problem}{though}" for result in failures]
        return AllReduceResult({}, False, len(places), [*pairs, *failed])
    slowest = {size: max(result.value[0][size] for result in results) for size in REPEATS}
    return AllReduceResult(slowest, all(result.value[1] for result in results), len(places), [])


def unreachable_pairs(nodes: list[NodeRow]) -> list[str]:
    """Sentences on nodes that do not reach each other over a port such as NCCL and gloo use: any above 1023."""
    with _members(nodes, use_gpu=False) as members:
        listening = {member.listen.remote(): node for member, node in zip(members, nodes, strict=True)}
        goals = [goal for goal in collect_results(listening, PAIRS_TIMEOUT) if not goal.problem]
        starts = product(zip(members, nodes, strict=True), goals)
        pairs = [(member, node, goal) for (member, node), goal in starts if goal.node is not node]
        tasks = {member.connection_error.remote(*goal.value): node for member, node, goal in pairs}
        results = collect_results(tasks, PAIRS_TIMEOUT)
    return [
        f"node {result.name} does not reach node {goal.name} at {goal.value[0]} ({result.problem or result.value})"
        for result, (_, _, goal) in zip(results, pairs, strict=True)
        if result.problem or result.value
    ]


@contextmanager
def _members(places: list[NodeRow], use_gpu: bool) -> Iterator[list[Any]]:
    """Start a process at each place; they end with the block."""
    kind: Any = ray.remote(AllReduceMember)
    members = [kind.options(**node_options(place, num_gpus=1 if use_gpu else 0)).remote() for place in places]
    try:
        yield members
    finally:
        for member in members:
            ray.kill(member)
