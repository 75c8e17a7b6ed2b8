"""Groups of worker processes without Ray, forked from a server that imports torch and DeepSpeed once a session."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch

IMPORTED = ["torch", "deepspeed", "ditlab.engine.engine", "ditlab.training.worker"]
# Imported by the first optimiser and by the first ZeRO engine: four seconds in each process of a group.
IMPORTED += ["torch._dynamo", "deepspeed.runtime.zero.muon.muon_optimizer"]


def run_group(body: Callable[..., None], arguments: tuple[Any, ...], world_size: int) -> None:
    """Run `body(rank, *arguments)` in `world_size` processes at once, and raise what one of them raises.

    They see the environment as it is at the first call of a session.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for hardware as it is imported
    multiprocessing.get_context("forkserver").set_forkserver_preload(IMPORTED)
    torch.multiprocessing.start_processes(body, arguments, nprocs=world_size, start_method="forkserver")
