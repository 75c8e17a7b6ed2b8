"""Plain training steps: fused AdamW, clipping by norm, a moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class PlainTraining:
    """Training of a network by the loop that a script would hold."""

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[], Tensor],
        *,
        lr: float,
        weight_decay: float,
        max_norm: float | None,
        ema_decay: float | None,
    ) -> None:
        """Train `network` on `loss`, which returns a batch's scalar loss; None clips or averages
        nothing.
        """
        self._parameters = list(network.parameters())
        self._loss, self._max_norm, self._decay = loss, max_norm, ema_decay
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=lr, weight_decay=weight_decay, fused=True
        )
        self.average = (
            [] if ema_decay is None else [each.detach().clone() for each in self._parameters]
        )

    def step(self) -> float:
        """Take one step; return its loss."""
        loss = self._loss()
        loss.backward()
        if self._max_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._decay is not None:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self._parameters, 1 - self._decay)
        return loss.item()


class MixedTraining:
    """Training of a module in bfloat16 with float32 master weights, as ZeRO 1 has it on one worker,
    called as `Engine`.

    Gradients stay in bfloat16 until the update, and are freed in it.
    """

    def __init__(
        self,
        module: nn.Module,
        accumulation: int,
        optimizer: Any,
        max_norm: float | None,
        ema_decay: float | None,
    ) -> None:
        """Train `module`, an engine's `TrainingModule`, in so many passes a step; `optimizer`: a
        spec's AdamW.
        """
        self._masters = [each.detach().float().clone() for each in module.parameters()]
        self.module, self._accumulation = module.bfloat16(), accumulation
        self._parameters = list(module.parameters())
        self._max_norm, self._decay = math.inf if max_norm is None else max_norm, ema_decay
        self._optimizer = torch.optim.AdamW(
            self._masters,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self.average = [] if ema_decay is None else [each.clone() for each in self._masters]

    def forward_backward(
        self, batch: Mapping[str, Tensor], noise: Any, last: bool
    ) -> dict[str, Tensor]:
        """Run one micro-batch forward and backward; return the weighted loss, detached."""
        total = self.module("loss", batch, noise)[0]
        (total / self._accumulation).backward()
        return {"loss": total.detach()}

    @torch.no_grad()
    def step(self, step: int, lr: float, healthy: Tensor | None = None) -> Tensor:
        """Update at a learning rate; return the gradient's norm before clipping. Waits for no
        device.
        """
        norm = nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
        for master, parameter in zip(self._masters, self._parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        self._optimizer.param_groups[0]["lr"] = lr
        self._optimizer.step()
        self._optimizer.zero_grad()
        torch._foreach_copy_(self._parameters, self._masters)
        if self._decay is not None:
            torch._foreach_lerp_(self.average, self._masters, 1 - self._decay)
        return norm
