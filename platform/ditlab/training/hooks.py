"""Hooks on the step loop: observers of a training, and the moments at which they are called.

Every observer is a `StepHook` and overrides the moments that it needs: receipts, the log of phases,
the reporter, a replay, a proof, and those of add-ons (`ditlab.parts.Parts.observers`). A moment
that no hook overrides costs nothing. No hook changes what is trained. An attempt begins again after
a roll-back or with another micro-batch size. In it come `attempt_begun` and `loader_opened`; for
each step (counted from 1) `step_begun`, `consumed`, `step_ended`, `pack` and `merge` (one
collective for all hooks together), and, on a GPU a few steps later, `measured`; `evaluated`,
`saving` and, later, `saved`; `attempt_ended`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ditlab.data.loading.loader import WorkerBatches
    from ditlab.data.loading.transfer import MicroBatch
    from ditlab.engine.distributed import ControlChannel
    from ditlab.training.recovery import MemoryPlan


@dataclass(frozen=True, slots=True)
class ConsumedPass:
    """Samples of a forward pass, and the key that their random numbers were drawn with."""

    row_ids: np.ndarray
    """Rows of the store, int64 (samples,)."""
    place: int
    """Place of the first one in the global batch."""
    micro_index: int
    start: int
    """Micro-batch and place within it that the random numbers of the first one belong to."""
    step: int
    """From 0, as random numbers are keyed."""
    seed: int


class StepHook:
    """Observer of a training on one worker. Every moment does nothing here."""

    # Any: `training.stepping.Stepper`, which imports this module
    def attempt_begun(self, stepper: Any, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        """Begin to observe `stepper.state`; `saved` is what the checkpoint that it goes on from
        holds of the hooks.
        """

    def loader_opened(self, batches: WorkerBatches, position: int) -> None:
        """Take note of the batches that are read, from a position in the order of samples on."""

    def step_begun(self, step: int, micro_batches: Sequence[MicroBatch]) -> None:
        """Observe the state before a step, and this worker's micro-batches."""

    def consumed(self, step: int, passes: Sequence[ConsumedPass]) -> None:
        """Observe, after the last backward pass, what the passes of this worker that count took.

        A step that is skipped is consumed without passes, and ends.
        """

    def step_ended(self, step: int) -> None:
        """Observe the state after a step."""

    def pack(self) -> Sequence[int]:
        """Return this worker's numbers for the others: not negative, and equally many at every call
        and worker.
        """
        return ()

    def merge(self, step: int, records: Sequence[Sequence[int]]) -> None:
        """Take in the numbers that all workers packed after a step, in order of rank."""

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the numbers of a step: `loss`, its components, `grad_norm`, `lr`."""

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Observe an evaluation before the last step; return True, within a minute, to be asked
        again.
        """
        return False

    def saving(self) -> Mapping[str, str]:
        """Return what a checkpoint of now is to hold for this hook."""
        return {}

    def saved(self, step: int, location: str, metrics: Mapping[str, float]) -> None:
        """Take note of a checkpoint that is complete; on the first worker alone."""

    def attempt_ended(self) -> None:
        """Stop to observe the state: steps end, by an error too."""


class Hooks:
    """Hooks of a training by moment: for each, the methods of those that override it, in the order
    given.
    """

    def __init__(self, hooks: Sequence[StepHook] = ()) -> None:
        def methods(moment: str) -> list[Callable[..., Any]]:
            default = getattr(StepHook, moment)
            return [
                getattr(hook, moment)
                for hook in hooks
                if getattr(type(hook), moment) is not default
            ]

        self.attempt_begun = methods("attempt_begun")
        self.attempt_ended = methods("attempt_ended")
        self.loader_opened = methods("loader_opened")
        self.step_begun = methods("step_begun")
        self.consumed = methods("consumed")
        self.step_ended = methods("step_ended")
        self.measured = methods("measured")
        self.evaluated = methods("evaluated")
        self.saving = methods("saving")
        self.saved = methods("saved")
        self._packing = [hook for hook in hooks if type(hook).pack is not StepHook.pack]

    def exchange(self, step: int, channel: ControlChannel, *votes: int) -> list[int]:
        """Exchange what the hooks have packed among all workers, in one collective; return the
        largest of each vote.
        """
        records = [list(hook.pack()) for hook in self._packing]
        rows = channel.gather_numbers([*votes, *chain.from_iterable(records)])
        begin = len(votes)
        for hook, record in zip(self._packing, records, strict=True):
            end = begin + len(record)
            hook.merge(step, [row[begin:end] for row in rows])
            begin = end
        return [max(row[index] for row in rows) for index in range(len(votes))]

    def held(self) -> dict[str, str]:
        """Return what a checkpoint of now is to hold for all hooks."""
        texts: dict[str, str] = {}
        for saving in self.saving:
            texts |= saving()
        return texts
