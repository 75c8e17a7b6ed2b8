"""Exponential moving average of the master weights, partitioned as they are."""

from typing import Any

import torch
from torch import Tensor

from ditlab.engine.partitions import Partitions
from ditlab.engine.update import Update
from ditlab.spec.optimisation.training import Ema

SLICE = 2**24  # values exchanged at once with the average: 64 MiB


class WeightAverage:
    """Exponential moving average, updated inside the optimiser's step, when state kept in files is in memory anyway.

    The average itself is in memory always, beside the masters: on the device, or on the CPU where they are offloaded.
    A step that is left out leaves it as it was.
    """

    def __init__(self, partitions: Partitions, update: Update, spec: Ema | None) -> None:
        self._partitions, self._update, self._spec = partitions, update, spec
        self._weight = 0.0
        self._flats: list[Tensor] = []
        if spec is None:
            return
        for index, flat in enumerate(partitions.flats):
            with partitions.resident(index):
                self._flats.append(flat.detach().clone())
        self._index = {id(flat): index for index, flat in enumerate(partitions.flats)}
        partitions.adam.register_step_post_hook(self._follow)

    def begin(self, step: int) -> None:
        """Set the decay of optimiser step `step` (from 0)."""
        if self._spec is not None:
            # Karras-style warm-up of the average, or a short run would sample from its start.
            self._weight = 1 - min(self._spec.decay, (1 + step) / (10 + step))

    def _follow(self, adam: torch.optim.Optimizer, *_: Any) -> None:
        """Update the averages of the partitions that Adam has just stepped; DeepSpeed steps one group at a time."""
        masters = [flat.detach() for group in adam.param_groups for flat in group["params"]]
        averages = [self._flats[self._index[id(flat)]] for group in adam.param_groups for flat in group["params"]]
        if masters:
            weight = self._update.weight(self._weight, masters[0].device)
            torch._foreach_lerp_(averages, masters, [weight] * len(masters))

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Return the `ema` of one flat; nothing without an average."""
        return {"ema": self._flats[index]} if self._flats else {}

    def exchange(self) -> None:
        """Swap weights and average, a slice at a time: a copy of the whole partition might not fit."""
        if not self._flats:
            return
        with self._partitions.rewriting() as indices:
            for index in indices:
                flats = (self._partitions.flats[index].detach(), self._flats[index])
                for master, average in zip(*(flat.view(-1).split(SLICE) for flat in flats), strict=True):
                    held = master.clone()
                    master.copy_(average)
                    average.copy_(held)
