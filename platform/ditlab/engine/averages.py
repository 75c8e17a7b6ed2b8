"""Averages of the float32 master weights, partitioned as they are: exponential, and of
power-function profile.

Power-function profiles are those of Karras et al. 2024 (arXiv:2312.02696).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ditlab.averages import START, PowerProfile, field_of
from ditlab.engine.deepspeed_internals import ParameterSlice, Partitions
from ditlab.engine.update import Update
from ditlab.spec.optimization import Ema

SLICE = 2**24  # values exchanged at once with the average: 64 MiB


class WeightAverages:
    """Average `ema` that is evaluated, and averages of some relative lengths, each by its field of
    a state.

    They are in memory always, beside the masters: on the device, or on the CPU where these are
    offloaded. The optimiser's step updates them. A skipped step leaves them as they were. Averages
    of a length count applied updates, as Adam does; after the first each is that update's result,
    so the weights before have no part in them.
    """

    def __init__(
        self,
        partitions: Partitions,
        update: Update,
        ema: Ema | None,
        lengths: Sequence[float],
        is_given: bool,
    ) -> None:
        """Begin the averages with the masters. `ema` is exponential, or where it `is_given` the
        optimiser's own.
        """
        self._partitions = partitions
        self._update = update
        self._ema = ema
        self._ema_weight = 0.0
        self.exponents = {field_of(length): PowerProfile(length).gamma for length in lengths}
        """Exponent of the profile of each relative length, by field."""
        self.start = 0
        """Updates that were applied before the averages of the lengths began."""
        fields = ["ema"] if ema or is_given else []
        fields += self.exponents
        self._flats = {
            field: [flat.detach().clone() for flat in partitions.flats] for field in fields
        }
        self._index = {id(flat): index for index, flat in enumerate(partitions.flats)}
        if self._flats:
            partitions.adam.register_step_post_hook(self._follow)

    def begin(self, step: int) -> None:
        """Set the decay of the exponential average in optimiser step `step` (from 0)."""
        if self._ema is not None:
            # Karras-style warm-up of the average, or a short run would sample from its start.
            self._ema_weight = 1 - min(self._ema.decay, (1 + step) / (10 + step))

    def _follow(self, adam: torch.optim.Optimizer, *_: Any) -> None:
        """Update the averages of the partitions that Adam has just stepped; DeepSpeed steps one
        group at a time.
        """
        stepped = [flat for group in adam.param_groups for flat in group["params"]]
        if not stepped:
            return
        device = stepped[0].device
        weights: dict[str, Tensor] = {}  # of the new masters in each average, 0-dim
        if self._ema is not None:
            weights["ema"] = self._update.weight(self._ema_weight, device)
        if self.exponents:
            # the count is a tensor on the device, so nothing waits for a GPU
            number = (self._partitions.count_updates(stepped) - self.start).double().clamp(min=1)
            applied = self._update.weight(1.0, device)
            for field, exponent in self.exponents.items():
                share = -torch.expm1(torch.log1p(-1 / number) * (exponent + 1))  # 1 - beta_k
                weights[field] = applied * share.to(applied)
        masters = [flat.detach() for flat in stepped]
        places = [self._index[id(flat)] for flat in stepped]
        for field, weight in weights.items():
            torch._foreach_lerp_(
                [self._flats[field][place] for place in places], masters, [weight] * len(masters)
            )

    def exchange(self) -> None:
        """Swap weights and the average `ema`, a slice at a time: a copy of the whole partition
        might not fit.
        """
        if "ema" not in self._flats:
            return
        with self._partitions.rewriting():
            for weights, averages in zip(self._partitions.flats, self._flats["ema"], strict=True):
                masters = weights.detach().view(-1).split(SLICE)
                for master, average in zip(masters, averages.view(-1).split(SLICE), strict=True):
                    held = master.clone()
                    master.copy_(average)
                    average.copy_(held)

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Return the averages of one flat, by field; nothing without averages."""
        return {field: flats[index] for field, flats in self._flats.items()}

    def of(self, flat: Tensor) -> Tensor:
        """Return the average `ema` of a flat."""
        return self._flats["ema"][self._index[id(flat)]]

    @property
    def updates(self) -> int:
        """Updates since the averages of the lengths began. Waits for a GPU."""
        return self._partitions.adam_step - self.start

    def slices(self) -> Iterator[tuple[str, ParameterSlice, Tensor]]:
        """Yield field, slice and values of each length's average on this worker."""
        for index, parts in enumerate(self._partitions.slices_of):
            for field in self.exponents:
                for part in parts:
                    yield field, part, part.of(self._flats[field][index])

    def scalars(self) -> dict[str, float]:
        """Return the state beside the averages themselves; nothing without averages of a length."""
        if not self.exponents:
            return {}
        return {START: float(self.start)}

    def load(self, scalars: Mapping[str, float]) -> None:
        """Go on from a saved state, or begin again where it has no averages; Adam's step was loaded
        before.
        """
        self.start = int(scalars.get(START, self._partitions.adam_step))
