"""Puts a fault into an objective."""

from typing import Any

import torch
from torch import distributed

from ditlab.errors import UserError


def breaking(objective: Any, fault: Any) -> Any:
    """The objective, whose training loss breaks as `fault` says."""
    whole = objective.loss

    def loss(network: Any, batch: Any, noise: Any) -> Any:
        losses = whole(network, batch, noise)
        here = distributed.is_initialized() and distributed.get_rank() == fault.rank
        if not (
            here and noise.stream == "train" and noise.step + 1 == fault.step and len(batch["image"]) > fault.above
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
            case "input":
                raise UserError("the input is wrong, by a test")
        return losses

    objective.loss = loss
    return objective


def _no_room(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. (by a test)")
