"""Norms of one optimiser step by parameter: of the gradient, the update and the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from ditlab.training.state import TrainingState


@dataclass(frozen=True)
class ParameterNorms:
    """L2 norms of one parameter, over all workers' parts of it."""

    gradient: float
    """Norm before clipping."""
    update: float
    """Norm of the change of the float32 weights."""
    weight: float
    """Norm of the float32 weights before the update."""

    @property
    def ratio(self) -> float | None:
        """Norm of the update over that of the weights; None for weights of zero."""
        return self.update / self.weight if self.weight else None


class UpdateNorms:
    """Norms of the steps that are taken until they are read; costs a copy of the weights that a step updates.

    They are taken around the optimiser's own step. There every ZeRO stage and offload holds the reduced, unscaled and
    not yet clipped gradient beside the float32 weights.
    """

    def __init__(self, state: TrainingState) -> None:
        self._partitions = state.engine.partitions
        names = [name for name, each in state.module.named_parameters() if each.requires_grad]
        self._squares = {name: torch.zeros(3, dtype=torch.float64) for name in names}
        self._before: dict[int, Tensor] = {}
        adam = self._partitions.adam
        self._hooks = [adam.register_step_pre_hook(self._begin), adam.register_step_post_hook(self._end)]

    def read(self, device: torch.device) -> dict[str, ParameterNorms]:
        """Return the norms by parameter, in the order of the network, alike on all workers. All must call.

        All are 0 where the optimiser took no step, as where the scale of float16 overflows.
        """
        for hook in self._hooks:
            hook.remove()
        squares = torch.stack([*self._squares.values()]).to(device)
        if self._partitions.stage > 0 and distributed.get_world_size() > 1:  # workers hold different parts
            distributed.all_reduce(squares)
        return dict(zip(self._squares, (ParameterNorms(*row) for row in squares.sqrt().tolist()), strict=True))

    def _begin(self, *_: Any) -> None:
        """Keep the weights that have a gradient, as ZeRO-3 updates them group by group."""
        for index, flat in enumerate(self._partitions.flats):
            if flat.grad is not None:
                self._before[index] = flat.detach().clone()
                self._add(index, 0, flat.grad.contiguous())
                self._add(index, 2, self._before[index])

    def _end(self, *_: Any) -> None:
        for index, before in self._before.items():
            self._add(index, 1, self._partitions.flats[index].detach() - before)
        self._before.clear()

    def _add(self, index: int, column: int, flat: Tensor) -> None:
        for part in self._partitions.slices_of[index]:
            norm = torch.linalg.vector_norm(part.of(flat), dtype=torch.float64)
            self._squares[part.name][column] += norm.square().cpu()
