"""Process groups: gloo on CPU, NCCL on CUDA, with or without a launcher."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from ditlab.engine.deepspeed_internals import release_process_group

_MPI_VARIABLES = (
    *(f"OMPI_COMM_WORLD_{each}" for each in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    "LOCAL_SIZE",
)
"""Variables of an MPI launcher around the run, which DeepSpeed would take for the run's own, or
refuse.
"""


@dataclass(frozen=True)
class Rank:
    """Rank of a worker, its device, and the size of its group."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    timeout: float = 1800.0
    """Seconds that a collective waits for the other workers."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@contextmanager
def single_process(use_gpu: bool, timeout: float = 1800.0) -> Iterator[Rank]:
    """Create a process group of one, without a launcher or a network port."""
    rank = current_rank(use_gpu, rank=0, world_size=1, local_rank=0, timeout=timeout)
    excepthook = sys.excepthook
    distributed.init_process_group(
        "nccl" if use_gpu else "gloo",
        store=distributed.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield rank
    finally:
        release_process_group()
        # or this process's later errors would still be marked as of rank 0
        sys.excepthook = excepthook


def current_rank(
    use_gpu: bool, rank: int, world_size: int, local_rank: int, timeout: float = 1800.0
) -> Rank:
    """Select this process's device, for DeepSpeed's accelerator layer too, and return its rank."""
    # DeepSpeed looks for hardware by itself, once a process; a CPU run must not be moved onto a GPU
    # that is there, or that a run before it used.
    kind = "cuda" if use_gpu else "cpu"
    os.environ["DS_ACCELERATOR"] = kind
    chosen: Any = sys.modules.get("deepspeed.accelerator.real_accelerator")
    if chosen and chosen.get_accelerator().device_name() != kind:
        chosen.ds_accelerator = None
    os.environ["LOCAL_RANK"] = str(local_rank)
    for name in _MPI_VARIABLES:
        os.environ.pop(name, None)
    if not use_gpu:
        return Rank(rank, world_size, local_rank, torch.device("cpu"), timeout)
    # A launcher that shows each worker its own GPU alone numbers it 0, whatever the worker's local
    # rank.
    index = local_rank if torch.cuda.device_count() > local_rank else 0
    torch.cuda.set_device(index)
    # a float32 convolution's gradient would be summed in any order
    torch.backends.cudnn.deterministic = True
    os.environ["LOCAL_RANK"] = str(index)  # DeepSpeed takes it for the device's number
    return Rank(rank, world_size, local_rank, torch.device("cuda", index), timeout)


class PeerLost(RuntimeError):
    """Loss of contact with another worker."""


def is_peer_loss(error: BaseException) -> bool:
    """Return True if a collective failed because another worker is gone: the cause lies there."""
    if isinstance(error, distributed.DistError | PeerLost):
        return True
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


class ControlChannel:
    """Small collectives between workers (stop requests, metrics), on the CPU whatever the device:
    no GPU waits.

    A thread beside the step loop takes a `private` channel: two threads on one would mix up their
    messages. All workers create their channels in the same order.
    """

    def __init__(self, rank: Rank, private: bool = False) -> None:
        self.world_size = rank.world_size
        self._rank = rank.rank
        self._group = None
        if rank.world_size > 1 and (private or rank.device.type == "cuda"):
            limit = timedelta(seconds=rank.timeout)
            self._group = distributed.new_group(backend="gloo", timeout=limit)

    def gather_numbers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return every worker's numbers, in order of rank, by one reduction.

        All must call, with equally many numbers, none of them negative.
        """
        if self.world_size == 1:
            return [list(numbers)]
        rows = torch.zeros(self.world_size, len(numbers), dtype=torch.int64)
        rows[self._rank] = torch.tensor(numbers)
        distributed.all_reduce(rows, distributed.ReduceOp.MAX, group=self._group)
        return rows.tolist()

    def gather(self, thing: object) -> list[object]:
        """Return every worker's object, in order of rank. All must call."""
        if self.world_size == 1:
            return [thing]
        things: list[object] = [None] * self.world_size
        distributed.all_gather_object(things, thing, group=self._group)
        return things

    def close(self) -> None:
        """Destroy the channel's process group, after an orderly end only: with lost workers this
        would block.
        """
        if self._group is not None:
            distributed.destroy_process_group(self._group)
            self._group = None

    def barrier(self) -> None:
        """Wait for all workers."""
        if self.world_size > 1:
            distributed.barrier(group=self._group)
