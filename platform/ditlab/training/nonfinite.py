"""What to do about a step whose loss or gradient was no number."""

import math
from dataclasses import dataclass

from ditlab.errors import RunFailed
from ditlab.spec.experiment import Experiment


@dataclass
class NonFiniteWatch:
    """Counts steps that were left out. The engine has left them out by itself; this decides what follows.

    All workers see the same numbers in the same order, so they decide alike.
    """

    experiment: Experiment
    skipped: int = 0
    """Steps left out by this process."""
    _row: int = 0
    _rollbacks: int = 0
    _back_at: int = -1

    def is_bad(self, step: int, loss: float, norm: float) -> bool:
        """Whether the numbers of a step (counted from 1) are none.

        Raises RunFailed where the policy, or its limit of steps in a row, says that the run has diverged.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            self._row = 0
            return False
        policy = self.experiment.training.non_finite
        self.skipped += 1
        self._row += 1
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        if policy.policy == "stop":
            raise self._diverged(f"{what} at step {step}")
        if policy.policy == "skip" and self._row > policy.limit:
            raise self._diverged(f"{what} at step {step}, as were {policy.limit} steps before it")
        return True

    def rolled_back(self, step: int, to: int) -> None:
        """The run went back to step `to` because of step `step`.

        Raises RunFailed where it has gone back there too often.
        """
        limit = self.experiment.training.non_finite.limit
        self._rollbacks = self._rollbacks + 1 if to <= self._back_at else 1
        self._back_at = to
        if self._rollbacks > limit:
            raise self._diverged(f"step {step} was no number, after {limit} roll-backs to step {to}")

    def _diverged(self, what: str) -> RunFailed:
        return RunFailed(
            f"{what}: training diverged; lower optimizer.lr (now {self.experiment.optimizer.lr}) or "
            "training.clip.max_norm, or use training.precision=fp32.",
            kind="diverged",
        )
