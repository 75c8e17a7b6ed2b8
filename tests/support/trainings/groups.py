"""Groups of worker processes without Ray, forked from a server that imports all that is heavy once
a session.
"""

import gc
import multiprocessing
import os
from contextlib import contextmanager

import torch

from ditlab.engine.distributed import current_rank

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


def warm_processes():
    """Return the context of processes that are forked from that server.

    They see the environment as it is when the first of a session starts.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # DeepSpeed looks for hardware as it is imported
    # a thread of MLflow's, which no fork would have
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def run_group(body, arguments, world_size):
    """Run `body(rank, *arguments)` in `world_size` warm processes at once, and raise what one of
    them raises.
    """
    warm_processes()
    torch.multiprocessing.start_processes(
        _run, (body, arguments), nprocs=world_size, start_method="forkserver"
    )


@contextmanager
def joined(rank, world_size, folder):
    """Make this process a worker of a gloo group whose members meet in a folder."""
    torch.set_num_threads(1)
    place = current_rank(False, rank, world_size, rank)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size
    )
    yield place
    torch.distributed.destroy_process_group()


def _run(rank, body, arguments):
    gc.freeze()  # each engine that is closed collects garbage, and would look through all imports
    body(rank, *arguments)
