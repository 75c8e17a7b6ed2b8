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


class _Averages:
    """Averages of the masters by field, updated inside the optimiser's step, when state kept in files is in memory.

    The averages themselves are in memory always, beside the masters: on the device, or on the CPU where these are
    offloaded. A step that is left out leaves them as they were.
    """

    def __init__(self, partitions: Partitions, update: Update, fields: Sequence[str]) -> None:
        self._partitions, self._update = partitions, update
        self.fields = fields
        """Names of the averages among the fields of a state."""
        self._flats: dict[str, list[Tensor]] = {field: [] for field in fields}
        for field in fields:
            for index, flat in enumerate(partitions.flats):
                with partitions.resident(index):
                    self._flats[field].append(flat.detach().clone())
        self._index = {id(flat): index for index, flat in enumerate(partitions.flats)}
        if fields:
            partitions.adam.register_step_post_hook(self._follow)

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Return the averages of one flat, by field; nothing without averages."""
        return {field: flats[index] for field, flats in self._flats.items()}

    def _follow(self, adam: torch.optim.Optimizer, *_: Any) -> None:
        """Update the averages of the partitions that Adam has just stepped; DeepSpeed steps one group at a time."""
        stepped = [flat for group in adam.param_groups for flat in group["params"]]
        if not stepped:
            return
        masters, places = [flat.detach() for flat in stepped], [self._index[id(flat)] for flat in stepped]
        for field, weight in self._weights(stepped).items():
            torch._foreach_lerp_([self._flats[field][place] for place in places], masters, [weight] * len(masters))

    def _weights(self, stepped: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the weight of the new masters in each average, 0-dim on the device of the flats that were stepped."""
        raise NotImplementedError


class WeightAverage(_Averages):
    """Exponential moving average."""

    def __init__(self, partitions: Partitions, update: Update, spec: Ema | None) -> None:
        super().__init__(partitions, update, ["ema"] if spec else [])
        self._spec, self._weight = spec, 0.0

    def begin(self, step: int) -> None:
        """Set the decay of optimiser step `step` (from 0)."""
        if self._spec is not None:
            # Karras-style warm-up of the average, or a short run would sample from its start.
            self._weight = 1 - min(self._spec.decay, (1 + step) / (10 + step))

    def _weights(self, stepped: Sequence[Tensor]) -> dict[str, Tensor]:
        return {"ema": self._update.weight(self._weight, stepped[0].device)}

    def exchange(self) -> None:
        """Swap weights and average, a slice at a time: a copy of the whole partition might not fit."""
        if not self.fields:
            return
        with self._partitions.rewriting() as indices:
            for index in indices:
                flats = (self._partitions.flats[index].detach(), self._flats["ema"][index])
                for master, average in zip(*(flat.view(-1).split(SLICE) for flat in flats), strict=True):
                    held = master.clone()
                    master.copy_(average)
                    average.copy_(held)


class PowerAverages(_Averages):
    """Averages of some relative lengths.

    They count applied updates, as Adam does: a step that is left out does not change the count. With the first update
    each is that update's result, so nothing of the weights before has a part in them.
    """

    def __init__(self, partitions: Partitions, update: Update, lengths: Sequence[float]) -> None:
        self._exponents = {field_of(length): PowerProfile(length).gamma for length in lengths}
        super().__init__(partitions, update, list(self._exponents))
        self.start = 0
        """Updates that were applied before the averages began."""

    @property
    def updates(self) -> int:
        """Updates since the averages began. Waits for a GPU."""
        return self._partitions.adam_step - self.start

    def _weights(self, stepped: Sequence[Tensor]) -> dict[str, Tensor]:
        # the count is a tensor on the device, so nothing waits for a GPU
        number = (self._partitions.count_updates(stepped) - self.start).double().clamp(min=1)
        applied = self._update.weight(1.0, stepped[0].device)
        shares = {
            field: -torch.expm1(torch.log1p(-1 / number) * (exponent + 1))  # 1 - beta_k
            for field, exponent in self._exponents.items()
        }
        return {field: applied * share.to(applied) for field, share in shares.items()}

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
