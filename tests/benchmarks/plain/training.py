"""A plain training step: fused AdamW, clipping by norm, a moving average of the weights, a logged loss."""

from __future__ import annotations

from collections.abc import Callable

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
        """Train `network` on `loss`, which returns a batch's scalar loss; None clips or averages nothing."""
        self._parameters = list(network.parameters())
        self._loss, self._max_norm, self._decay = loss, max_norm, ema_decay
        self._optimizer = torch.optim.AdamW(self._parameters, lr=lr, weight_decay=weight_decay, fused=True)
        self.average = [] if ema_decay is None else [each.detach().clone() for each in self._parameters]

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
