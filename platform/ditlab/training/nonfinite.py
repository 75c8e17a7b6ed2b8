"""Policy for steps with a NaN or infinite loss or gradient."""

import math
from dataclasses import dataclass

from ditlab.errors import RunFailed
from ditlab.spec.experiment import Experiment


@dataclass
class NonFiniteMonitor:
    """Counter of non-finite steps; the engine has left their updates out by itself, this decides what follows.

    All workers see the same numbers in the same order, so they decide alike.
    """

    experiment: Experiment
    num_skipped: int = 0
    """Steps left out by this process."""
    num_consecutive: int = 0
    """Non-finite steps since the last finite one."""
    _num_rollbacks: int = 0
    _rollback_step: int = -1

    def record(self, step: int, loss: float, norm: float) -> None:
        """Count a step (from 1) whose loss or gradient norm is not finite.

        Raises:
            RunFailed: the policy is to stop, or its limit of steps in a row is exceeded.
        """
        policy = self.experiment.training.non_finite
        self.num_skipped += 1
        self.num_consecutive += 1
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        if policy.policy == "stop":
            raise self._diverged(f"{what} at step {step}")
        if policy.policy == "skip" and self.num_consecutive > policy.limit:
            raise self._diverged(f"{what} at step {step}, as in the {policy.limit} steps before it")

    def record_rollback(self, step: int, to: int) -> None:
        """Count a return to step `to` because of the non-finite step `step`.

        Raises:
            RunFailed: the run has gone back there too often.
        """
        limit = self.experiment.training.non_finite.limit
        self._num_rollbacks = self._num_rollbacks + 1 if to <= self._rollback_step else 1
        self._rollback_step = to
        if self._num_rollbacks > limit:
            raise self._diverged(f"step {step} had a NaN or infinite loss, after {limit} roll-backs to step {to}")

    def _diverged(self, what: str) -> RunFailed:
        return RunFailed(
            f"{what}: training diverged; lower optimizer.lr (now {self.experiment.optimizer.lr}) or "
            "training.clip.max_norm, or use training.precision=fp32.",
            kind="diverged",
        )
