"""Groups of worker processes without Ray, forked from a server that imports all that is heavy once
a session.
"""

import gc
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

import torch

# Dynamo and Muon: the first optimiser and the first ZeRO engine import them, for 4 s in each
# process of a group.
IMPORTED = [
    "torch",
    "deepspeed",
    "ditlab.engine.engine",
    "ditlab.training.trainer",
    "torch._dynamo",
    "deepspeed.runtime.zero.muon.muon_optimizer",
]
# For single processes of `support.forked`, at two seconds once a session.
IMPORTED += [
    "mlflow",
    "mlflow.store.tracking.sqlalchemy_store",
    "sklearn.datasets",
    "ditlab.tracking.tracker",
]


def warm_processes() -> Any:
    """Return the context of processes that are forked from that server.

    They see the environment as it is when the first of a session starts.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for hardware as it is imported
    # a thread of MLflow's, which no fork would have
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_group(body: Callable[..., None], arguments: tuple[Any, ...], world_size: int) -> None:
    """Run `body(rank, *arguments)` in `world_size` warm processes at once, and raise what one of
    them raises.
    """
    warm_processes()
    torch.multiprocessing.start_processes(
        _run, (body, arguments), nprocs=world_size, start_method="forkserver"
    )


def _run(rank: int, body: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    gc.freeze()  # each engine that is closed collects garbage, and would look through all imports
    body(rank, *arguments)
