"""What to do about a step whose loss or gradient was no number: a decision, made alike on every worker."""

import math
from dataclasses import dataclass
from typing import Literal

from ditlab.errors import RunFailed
from ditlab.spec.experiment import Experiment

Decision = Literal["go on", "skipped", "roll back"]


@dataclass
class NonFiniteWatch:
    """Counts steps that were left out. The engine has left them out by itself; this decides what follows."""

    experiment: Experiment
    skipped: int = 0
    """Steps left out by this process."""
    _row: int = 0
    _rollbacks: int = 0
    _last_bad: int = 0

    def look(self, step: int, loss: float, norm: float) -> Decision:
        """What follows from the loss and gradient norm of a step (counted from 1).

        Raises RunFailed where the policy or its limit says that the run has diverged.
        """
        is_bad = not math.isfinite(loss) or not math.isfinite(norm)
        if not is_bad:
            self._row = 0
            return "go on"
        policy = self.experiment.training.non_finite
        self.skipped += 1
        self._last_bad = step
        self._row += 1
        spent = {"skip": self._row > policy.limit, "rollback": self._rollbacks >= policy.limit, "stop": True}
        if spent[policy.policy]:
            raise RunFailed(self._sentence(step, loss, norm), kind="diverged")
        if policy.policy == "rollback":
            self._rollbacks += 1
            return "roll back"
        return "skipped"

    def saved(self, step: int) -> None:
        """A checkpoint of `step` exists: behind the last bad step, it lets roll-backs count anew."""
        if step > self._last_bad:
            self._rollbacks = 0

    def _sentence(self, step: int, loss: float, norm: float) -> str:
        optimizer, policy = self.experiment.optimizer, self.experiment.training.non_finite
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient norm is {norm}"
        tried = {
            "skip": f", as were {policy.limit} steps before it",
            "rollback": f", after {policy.limit} roll-backs",
            "stop": "",
        }[policy.policy]
        return (
            f"{what} at step {step}{tried}: training diverged; lower optimizer.lr (now {optimizer.lr}) or "
            "training.clip.max_norm, or use training.precision=fp32."
        )
