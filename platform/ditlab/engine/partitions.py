"""Partitions of float32 master weights and the optimiser's moments in DeepSpeed, as slices of named parameters.

ZeRO flattens parameters into partitions whose layout depends on stage and number of workers. As slices
`name[start:stop]` of flattened parameters, the state is the same for every layout, and a checkpoint made of such slices
loads into any other. Stages 0 to 3 differ only in the location of the slices, which this file alone computes.
Touches DeepSpeed's private names; `tests/ditlab/engine` fails when they move.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class ParameterSlice:
    """Slice `name[start:stop]` of a flattened parameter, at `flats[flat][offset : offset + stop - start]`."""

    name: str
    start: int
    stop: int
    flat: int
    offset: int

    def of(self, flat: Tensor) -> Tensor:
        return flat.view(-1)[self.offset : self.offset + self.stop - self.start]


class Partitions:
    """This worker's partitions of master weights and moments.

    `flats` stay the same tensor objects for the engine's life; where they are kept in files, those tensors are empty
    except inside `resident`.
    """

    def __init__(self, engine: Any, stage: int, moments: Callable[[str], Sequence[str]]) -> None:
        """Lay out an engine's partitions, and make the optimiser's state, `moments` of each parameter by its name.

        Parameters of one group of the optimiser have the same moments.
        """
        self._optimizer = engine.optimizer
        self._stage = stage
        names = {parameter: name for name, parameter in engine.module.named_parameters()}
        layout = {0: _whole, 1: _sliced, 2: _sliced, 3: _sharded}[stage]
        self.flats, self.members, slices = layout(engine.optimizer, names)
        """Flats; and the names of the parameters that each is a part of, alike on all workers."""
        self.slices_of: list[list[ParameterSlice]] = [[] for _ in self.flats]
        for part in slices:
            self.slices_of[part.flat].append(part)
        self.adam = engine.optimizer if stage == 0 else engine.optimizer.optimizer
        for index, flat in enumerate(self.flats):
            # Adam makes its state at the first step; made here, a checkpoint from before it is like any other.
            with self.resident(index, rewritten=True):
                self.adam.state[flat] = {
                    "step": torch.zeros((), dtype=torch.float32, device=flat.device),
                    **{moment: torch.zeros_like(flat.detach()) for moment in moments(self.members[index][0])},
                }

    def masters(self) -> list[Tensor]:
        """Return the master weights, flat by flat."""
        return [flat.detach() for flat in self.flats]

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Return one flat's `master` and moments."""
        state = self.adam.state[self.flats[index]]
        return {"master": self.flats[index].detach(), **{name: state[name] for name in state if name != "step"}}

    def has_moment(self, name: str) -> bool:
        """Return True if some parameter has a moment of this name; alike on all workers."""
        return any(name in self.adam.state[flat] for flat in self.flats)

    @property
    def adam_step(self) -> int:
        """Number of updates applied so far; a step that was left out does not count."""
        return int(self.adam.state[self.flats[0]]["step"].item()) if self.flats else 0

    @adam_step.setter
    def adam_step(self, value: int) -> None:
        for flat in self.flats:
            self.adam.state[flat]["step"].fill_(value)

    def swapped(self, index: int) -> bool:
        """Return True if a flat and its moments are kept in files."""
        return self._stage == 3 and self._optimizer._swappable_optimizer_subgroup(index)

    @contextmanager
    def resident(self, index: int, rewritten: bool = False) -> Iterator[None]:
        """Hold a flat and its moments in memory, and write them back where they are `rewritten` inside."""
        swapped = self.swapped(index)
        if swapped:
            self._optimizer._optimizer_states_and_gradient_swap_in(index)
        yield
        if swapped and rewritten:
            self._optimizer._optimizer_states_and_gradient_swap_out(index)
        elif swapped:
            self._optimizer._release_swap_buffers(index)

    @contextmanager
    def rewriting(self) -> Iterator[Iterator[int]]:
        """Iterate over flats, in memory one at a time, whose master weights may be written.

        At the end the weights that the network computes with are updated from them.
        """
        if self._stage == 3:
            self._optimizer.checkpoint_event_prologue()
        with torch.no_grad():
            yield self._rewritten()
        if self._stage in (1, 2):
            self._optimizer.update_lp_params()
        elif self._stage == 3:
            self._optimizer.checkpoint_event_epilogue()

    def _rewritten(self) -> Iterator[int]:
        for index in range(len(self.flats)):
            with self.resident(index, rewritten=True):
                yield index
                if self._stage == 3:
                    self._optimizer._reassign_or_swap_out_partitioned_parameters(index)


Layout = tuple[list[Tensor], list[list[str]], list[ParameterSlice]]


def _whole(optimizer: Any, names: dict[Tensor, str]) -> Layout:
    """Lay out stage 0: the parameters themselves, on every worker; each worker counts as the owner of all."""
    flats = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slices = [ParameterSlice(names[flat], 0, flat.numel(), index, 0) for index, flat in enumerate(flats)]
    return flats, [[names[flat]] for flat in flats], slices


def _sliced(optimizer: Any, names: dict[Tensor, str]) -> Layout:
    """Lay out stages 1 and 2: each group is a flat buffer, cut into equal ranges, one a worker, across parameters.

    A parameter's place in the buffer is read from its address, which holds whatever order and padding DeepSpeed chose.
    """
    flats, slices = list(optimizer.single_partition_of_fp32_groups), []
    for index, (flat, buffer) in enumerate(zip(flats, optimizer.bit16_groups_flat, strict=True)):
        rank = torch.distributed.get_rank(group=optimizer.real_dp_process_group[index])
        low, high = rank * flat.numel(), (rank + 1) * flat.numel()
        for parameter in optimizer.bit16_groups[index]:
            begin = (parameter.data_ptr() - buffer.data_ptr()) // buffer.element_size()
            start, stop = max(begin, low), min(begin + parameter.numel(), high)
            if start < stop:
                slices.append(ParameterSlice(names[parameter], start - begin, stop - begin, index, start - low))
    return flats, _members(optimizer.bit16_groups, names), slices


def _sharded(optimizer: Any, names: dict[Tensor, str]) -> Layout:
    """Lay out stage 3: each parameter is cut into equal shards, one a worker, the last padded, stored end to end."""
    flats, slices = list(optimizer.fp32_partitioned_groups_flat), []
    rank = torch.distributed.get_rank()
    for index, group in enumerate(optimizer.fp16_groups):
        offset = 0
        for parameter in group:
            shard = parameter.partition_numel()
            start, stop = rank * shard, min((rank + 1) * shard, parameter.ds_numel)
            if start < stop:
                slices.append(ParameterSlice(names[parameter], start, stop, index, offset))
            offset += shard
    return flats, _members(optimizer.fp16_groups, names), slices


def _members(groups: Sequence[Sequence[Tensor]], names: dict[Tensor, str]) -> list[list[str]]:
    return [[names[parameter] for parameter in group] for group in groups]
