"""Groups of worker processes without Ray, forked from a server that imports torch and DeepSpeed once a session."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch

# The last two are imported by the first optimiser and the first ZeRO engine: four seconds in each process of a group.
IMPORTED = [
    "torch", "deepspeed", "ditlab.engine.engine", "ditlab.training.worker", "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer",
]  # fmt: skip


def warm_processes() -> Any:
    """Return the context of processes that are forked from that server.

    They see the environment as it is when the first of a session starts.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for hardware as it is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_group(body: Callable[..., None], arguments: tuple[Any, ...], world_size: int) -> None:
    """Run `body(rank, *arguments)` in `world_size` warm processes at once, and raise what one of them raises."""
    warm_processes()
    torch.multiprocessing.start_processes(body, arguments, nprocs=world_size, start_method="forkserver")
