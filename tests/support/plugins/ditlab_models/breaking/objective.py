"""Puts a fault into an objective."""

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from ditlab.errors import UserError

SECRETS = ("AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD", "RAY_AUTH_TOKEN")


def breaking(objective: Any, fault: Any) -> Any:
    """The objective, whose training loss breaks as `fault` says."""
    whole = objective.loss
    if (
        fault.kind == "away"
        and distributed.is_initialized()
        and distributed.get_rank() == fault.rank
    ):
        _stay_away_once()

    def loss(network: Any, batch: Any, noise: Any) -> Any:
        losses = whole(network, batch, noise)
        here = distributed.is_initialized() and distributed.get_rank() == fault.rank
        if not (
            here
            and noise.stream == "train"
            and noise.step + 1 == fault.step
            and len(batch["image"]) > fault.above
        ):
            return losses
        name = next(iter(losses))
        match fault.kind:
            case "nan":
                losses[name] = losses[name] * float("nan")
            case "forward":
                raise torch.OutOfMemoryError("CUDA out of memory. (by a test)")
            case "backward":
                losses[name].register_hook(_no_room)
            case "bug":
                raise ValueError("a bug, by a test")
            case "host":
                _fill_memory(fault.mib)
            case "leak":
                told = [os.environ.get(name, "") for name in SECRETS]
                raise ConnectionError(
                    f"no access with {told}: http://me:{told[1]}@host/?token={told[2]}"
                )
            case "tell":
                raise UserError(_network())
        return losses

    objective.loss = loss
    return objective


def _fill_memory(mib: int, seconds: float = 30.0) -> None:
    """Take memory of the host and keep it for some seconds, in which whoever watches the node kills
    this process.
    """
    taken, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(taken) < mib:
            taken.append(torch.ones(1 << 18))
        else:
            time.sleep(0.1)


def _stay_away_once() -> None:
    """While the others build: the first worker that comes here does not come back."""
    mark = Path(os.environ["TORCH_EXTENSIONS_DIR"]).parent / "away"  # below the run's DITLAB_HOME
    mark.parent.mkdir(parents=True, exist_ok=True)
    if not mark.exists():
        mark.touch()
        time.sleep(10_000)


def _network() -> str:
    """NCCL's and gloo's variables, and the seconds after which each group's collectives give up."""
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_"))
    }
    groups = distributed.distributed_c10d._world.pg_map
    limits = {
        group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        for group in groups
        if isinstance(group, distributed.ProcessGroup)
    }
    return (
        "network "
        f"{json.dumps({'variables': variables, 'limits': sorted(limits), 'groups': len(groups)})}"
    )


def _no_room(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. (by a test)")
