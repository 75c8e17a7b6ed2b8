"""Partitions of float32 master weights and the optimiser's moments in DeepSpeed, as slices of named parameters.

ZeRO flattens parameters into partitions whose layout depends on stage and number of workers. As slices
`name[start:stop]` of flattened parameters, the state is the same for every layout, and a checkpoint made of such slices
loads into any other. Stages 0 to 3 differ only in the location of the slices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ditlab.engine.deepspeed_internals import (
    ParameterSlice,
    is_swapped,
    lay_out,
    rewriting_masters,
    swap_in,
    swap_out,
    take_rewritten,
)


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
        self.flats, self.members, slices = lay_out(engine, stage)
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
        return int(self.count_updates(self.flats)) if self.flats else 0

    @adam_step.setter
    def adam_step(self, value: int) -> None:
        for flat in self.flats:
            self.adam.state[flat]["step"].fill_(value)

    def count_updates(self, flats: Sequence[Tensor]) -> Tensor:
        """Return the number of updates applied to some flats, 0-dim; at stage 0 frozen ones are never updated."""
        return torch.stack([self.adam.state[flat]["step"] for flat in flats]).max()

    def swapped(self, index: int) -> bool:
        """Return True if a flat and its moments are kept in files."""
        return self._stage == 3 and is_swapped(self._optimizer, index)

    @contextmanager
    def resident(self, index: int, rewritten: bool = False) -> Iterator[None]:
        """Hold a flat and its moments in memory, and write them back where they are `rewritten` inside."""
        swapped = self.swapped(index)
        if swapped:
            swap_in(self._optimizer, index)
        yield
        if swapped:
            swap_out(self._optimizer, index, rewritten)

    @contextmanager
    def rewriting(self) -> Iterator[Iterator[int]]:
        """Iterate over flats, in memory one at a time, whose master weights may be written.

        At the end the weights that the network computes with are updated from them.
        """
        with rewriting_masters(self._optimizer, self._stage), torch.no_grad():
            yield self._rewritten()

    def _rewritten(self) -> Iterator[int]:
        for index in range(len(self.flats)):
            with self.resident(index, rewritten=True):
                yield index
                if self._stage == 3:
                    take_rewritten(self._optimizer, index)
