"""All-reduce between nodes: measured as nccl-tests does, and where it fails, pair by pair."""

import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray
import torch
from torch import distributed

from ditlab.cluster.nodes.tasks import NodeRow, collect, on_node

SIZES = (1 << 20, 64 << 20)  # bytes: latency shows in the first, bandwidth in the second
REPEATS = {1 << 20: 20, 64 << 20: 3}
MEETING = 30.0  # seconds for all members to meet, and for each collective
PAIR = 5.0  # seconds for a connection between two nodes


@dataclass(frozen=True)
class Measured:
    """The group as a whole."""

    seconds: dict[int, float]
    """Of one all-reduce, by its bytes: the slowest member's."""
    is_right: bool
    """Whether every member had the right sum."""
    num_members: int
    problems: list[str]
    """Sentences without full stop, one a member that failed; the rest means nothing then."""

    def bus_bandwidth(self, size: int) -> float:
        """Bytes a second, as nccl-tests defines it: 2(n-1)/n of the message pass each link."""
        return 2 * (self.num_members - 1) / self.num_members * size / self.seconds[size]


class Member:
    """One process of the group."""

    def place(self) -> tuple[str, int]:
        """Address of its node, and a port that is free there."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind((host, 0))
            return host, free.getsockname()[1]

    def measure(
        self, rank: int, world_size: int, host: str, port: int, use_gpu: bool, timeout: float
    ) -> tuple[dict[int, float], bool]:
        """Seconds of an all-reduce by its bytes, and whether the sum was right."""
        device = torch.device("cuda", 0) if use_gpu else torch.device("cpu")
        distributed.init_process_group(
            "nccl" if use_gpu else "gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=world_size,
            timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        try:
            found = {size: _all_reduce(size, rank, world_size, device) for size in SIZES}
        finally:
            distributed.destroy_process_group()
        return {size: seconds for size, (seconds, _) in found.items()}, all(right for _, right in found.values())

    def listen(self) -> tuple[str, int]:
        """Takes connections from now on; where."""
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=1024)
        host, port = self._listener.getsockname()[:2]
        return host, port

    def reach(self, host: str, port: int) -> str:
        """Why a port of another node cannot be reached from this one; empty where it can."""
        return reach(host, port, PAIR)


def reach(host: str, port: int, timeout: float) -> str:
    """Why nothing answers there; empty where something does."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def _all_reduce(size: int, rank: int, world_size: int, device: torch.device) -> tuple[float, bool]:
    values = torch.full((size // 4,), float(rank + 1), device=device)
    distributed.all_reduce(values)
    is_right = bool((values == world_size * (world_size + 1) / 2).all())
    values.zero_()  # sums of sums would overflow
    distributed.barrier()
    began = time.perf_counter()
    for _ in range(REPEATS[size]):
        distributed.all_reduce(values)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) / REPEATS[size], is_right


def all_reduce(nodes: list[NodeRow], use_gpu: bool, timeout: float = MEETING) -> Measured:
    """Of all nodes together: a process a GPU, or a node. Where it fails, `problems` names nodes that do not reach each
    other. Returns within some `timeout`s, whatever hangs."""
    places = [node for node in nodes for _ in range(int(node["Resources"].get("GPU", 0)) if use_gpu else 1)]
    members = _members(places, use_gpu)
    try:
        (first, *_) = collect({members[0].place.remote(): places[0]}, timeout, time.time())
        if first.problem:
            busy = "; are its GPUs in use?" if use_gpu else ""
            return Measured({}, False, len(members), [f"node {first.name} gives no process ({first.problem}{busy})"])
        tasks = {
            member.measure.remote(rank, len(members), *first.value, use_gpu, timeout): place
            for rank, (member, place) in enumerate(zip(members, places, strict=True))
        }
        answers = collect(tasks, 3 * timeout, time.time())
    finally:
        for member in members:
            ray.kill(member)
    if any(answer.problem for answer in answers):
        pairs = unreachable_pairs(nodes)
        though = "" if pairs else ", though all nodes reach each other over TCP"
        failed = [f"node {answer.name}: {answer.problem}{though}" for answer in answers if answer.problem]
        return Measured({}, False, len(members), [*pairs, *failed])
    slowest = {size: max(answer.value[0][size] for answer in answers) for size in SIZES}
    return Measured(slowest, all(answer.value[1] for answer in answers), len(members), [])


def unreachable_pairs(nodes: list[NodeRow], patience: float = 60.0) -> list[str]:
    """Which node does not reach which other one, over a port as NCCL and gloo take them: any above 1023."""
    members = _members(nodes, use_gpu=False)
    try:
        listening = {member.listen.remote(): node for member, node in zip(members, nodes, strict=True)}
        there, tasks, goals = collect(listening, patience, time.time()), {}, {}
        for member, node in zip(members, nodes, strict=True):
            for goal in there:
                if goal.node["NodeID"] != node["NodeID"] and not goal.problem:
                    task = member.reach.remote(*goal.value)
                    tasks[task], goals[task] = node, goal
        answers = collect(tasks, patience, time.time())
    finally:
        for member in members:
            ray.kill(member)
    return [
        f"node {answer.name} does not reach node {goal.name} at {goal.value[0]} ({answer.problem or answer.value})"
        for answer, goal in zip(answers, goals.values(), strict=True)
        if answer.problem or answer.value
    ]


def _members(places: list[NodeRow], use_gpu: bool) -> list[Any]:
    kind: Any = ray.remote(Member)
    return [kind.options(**on_node(place, num_gpus=1 if use_gpu else 0)).remote() for place in places]
