"""Course of a run: which steps were done when, by how many workers, and which of them its weights come from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True)
class Execution:
    """One doing of a step; a step is done again after a kill, a roll-back or a resume from before it."""

    step: int
    """From 1."""
    attempt: int
    """Number of the attempt, from 1; 0 where nothing was recorded."""
    workers: int
    halvings: int = 0
    """Number of times the micro-batch was halved."""
    threads: int | None = None
    """Threads of each worker; None: not recorded."""
    left_out: bool = False
    """True if its batch was taken from the order, and not trained on."""
    loss: float | None = None
    """float32, as recorded; None where nothing was."""
    norm: float | None = None
    """Gradient norm before clipping, float32."""
    lr: float | None = None
    samples: int | None = None
    """Digest of the samples and draws."""

    @property
    def is_recorded(self) -> bool:
        """True if receipts hold this step."""
        return self.attempt > 0


@dataclass(frozen=True)
class Course:
    """Executions of a run in the order in which they were recorded."""

    executions: Sequence[Execution]
    default: Execution
    """Settings of steps that nothing was recorded of."""
    last: int
    """Last step that the run has done."""
    first: int = 0
    """Steps that were done before the run's own first one: those of a fork's parent."""
    note: str = ""
    """A sentence on what is not recorded; empty for none."""

    @cached_property
    def _final(self) -> dict[int, int]:
        return {execution.step: index for index, execution in enumerate(self.executions)}

    def final(self, step: int) -> Execution:
        """Return the last doing of a step: the one in the history of the run's weights."""
        index = self._final.get(step)
        return replace(self.default, step=step) if index is None else self.executions[index]

    def all_of(self, step: int) -> list[Execution]:
        """Return every recorded doing of a step, the first one first."""
        return [execution for execution in self.executions if execution.step == step]

    def lineage(self, execution: Execution) -> list[Execution]:
        """Return the executions that led to one, and itself: for each step from the run's first one, its last doing
        before."""
        index = next((i for i, each in enumerate(self.executions) if each is execution), None)
        if index is None:
            return [self.final(step) for step in range(self.first + 1, execution.step + 1)]
        found: dict[int, Execution] = {execution.step: execution}
        for each in reversed(self.executions[:index]):
            if each.step < execution.step:
                found.setdefault(each.step, each)
        steps = range(self.first + 1, execution.step + 1)
        return [found.get(step) or replace(self.default, step=step) for step in steps]

    def is_final_at(self, lineage: Sequence[Execution], step: int) -> bool:
        """Return True if the run's checkpoint of a step holds what a lineage had come to there."""
        if step == self.first:
            return True
        index, own = self._final.get(step), lineage[step - self.first - 1]
        return not own.is_recorded if index is None else own is self.executions[index]
