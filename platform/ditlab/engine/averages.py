"""Averages of the float32 master weights, partitioned as they are: exponential, and of power-function profile.

Power-function profiles are those of Karras et al. 2024 (arXiv:2312.02696).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ditlab.averages import START, PowerProfile, field_of
from ditlab.engine.deepspeed_internals import ParameterSlice
from ditlab.engine.partitions import Partitions
from ditlab.engine.update import Update
from ditlab.spec.optimization import Ema

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


class PowerAverages:
    """Averages of some relative lengths, updated inside the optimiser's step.

    They count applied updates, as Adam does: a step that is left out changes neither an average nor the count. With the
    first update each is that update's result, so nothing of the weights before has a part in them. In memory always,
    beside the masters.
    """

    def __init__(self, partitions: Partitions, update: Update, lengths: Sequence[float]) -> None:
        self._partitions, self._update = partitions, update
        self._exponents = {field_of(length): PowerProfile(length).gamma for length in lengths}
        self.start = 0
        """Updates that were applied before the averages began."""
        self._flats: dict[str, list[Tensor]] = {}
        for field in self._exponents:
            self._flats[field] = []
            for index, flat in enumerate(partitions.flats):
                with partitions.resident(index):
                    self._flats[field].append(flat.detach().clone())
        self._index = {id(flat): index for index, flat in enumerate(partitions.flats)}
        if lengths:
            partitions.adam.register_step_post_hook(self._follow)

    @property
    def fields(self) -> list[str]:
        """Names of the averages among the fields of a state."""
        return list(self._exponents)

    @property
    def updates(self) -> int:
        """Updates since the averages began. Waits for a GPU."""
        return self._partitions.adam_step - self.start

    def _follow(self, adam: torch.optim.Optimizer, *_: Any) -> None:
        """Update the averages of the partitions that Adam has just stepped; DeepSpeed steps one group at a time."""
        stepped = [flat for group in adam.param_groups for flat in group["params"]]
        if not stepped:
            return
        masters = [flat.detach() for flat in stepped]
        # the count is a tensor on the device, so nothing waits for a GPU
        number = (adam.state[stepped[0]]["step"] - self.start).double().clamp(min=1)
        applied = self._update.weight(1.0, masters[0].device)
        for field, exponent in self._exponents.items():
            share = -torch.expm1(torch.log1p(-1 / number) * (exponent + 1))  # 1 - beta_k
            weight = applied * share.to(applied)
            averages = [self._flats[field][self._index[id(flat)]] for flat in stepped]
            torch._foreach_lerp_(averages, masters, [weight] * len(masters))

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Return the averages of one flat, by field; nothing without averages."""
        return {field: flats[index] for field, flats in self._flats.items()}

    def slices(self) -> Iterator[tuple[str, ParameterSlice, Tensor]]:
        """Yield field, slice and values of all averages on this worker; reads no state that is kept in files."""
        for index, parts in enumerate(self._partitions.slices_of):
            for field, flat in self.tensors(index).items():
                for part in parts:
                    yield field, part, part.of(flat)

    def scalars(self) -> dict[str, float]:
        """Return the state beside the averages themselves; nothing without averages."""
        return {START: float(self.start)} if self._exponents else {}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Go on from a saved state, or begin again where it has no averages; Adam's step was loaded before."""
        self.start = int(scalars.get(START, self._partitions.adam_step))
