"""Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682, algorithm 1).

Three weights: z is what AdamW without momentum steps, x the average of all z, and y, between both,
what the network trains with: its gradient moves z. x is what is evaluated, sampled and exported.
The master weights of a run are y, the average that the engine keeps is x, and the state holds z -
x, which is zero before the first step as a moment is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ditlab.spec.optimization import Fraction, Optimizer, Positive, Warmup


class ScheduleFreeAdamW(Optimizer):
    """Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682).

    It evaluates an average of its steps, and so needs no falling rate and no run of known length:
    `training.ema` is null, `schedule` constant. Rates are larger than AdamW's, by about 1 to 10.
    """

    kind: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    """AdamW that evaluates the average of its weights and needs no schedule."""
    moments: ClassVar = ("moment_gap", "moment_second")
    averages_weights: ClassVar[bool] = True
    lr: Positive = 2.5e-3
    """Learning rate after the warm-up."""
    warmup: Warmup = 0
    """Steps of linear rise from 0. A step counts in the average by the square of its rate, so these
    count little.
    """
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """Share of the average in the weights that are trained, and decay rate of the second moment."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""

    def check(self, experiment: Any) -> None:
        """Refuse a schedule beside the rates that the average is weighted by."""
        super().check(experiment)
        schedule = experiment.schedule
        if schedule.kind != "constant" or schedule.warmup or schedule.warmup_epochs:
            raise ValueError(
                f"optimizer.kind={self.kind} has its own warm-up and no schedule; set schedule "
                "to {kind: constant}, and optimizer.warmup to the steps of a warm-up."
            )

    def decay(self, weights: Any, state: Mapping[str, Any], step: int, share: float) -> None:
        """Take the decay at y from z, as the paper does."""
        state["moment_gap"].sub_(weights, alpha=share * _share(step, self.warmup, self.betas[1]))

    def update(
        self, weights: Any, gradient: Any, state: Mapping[str, Any], step: int, lr: float
    ) -> None:
        """Step z, take it into x, and set y between both."""
        beta1, beta2 = self.betas
        x = state["average"]
        gap = state["moment_gap"]
        v = state["moment_second"]
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        share = _share(step, self.warmup, beta2)
        # of the new z and the old x
        gap.addcdiv_(gradient, v.sqrt().add_(self.eps), value=-lr * share)
        c = share**2 / _sum_of_squares(step, self.warmup, beta2)
        x.add_(gap, alpha=c)
        gap.mul_(1 - c)
        weights.copy_(x).add_(gap, alpha=1 - beta1)


def _share(step: int, warmup: int, beta2: float) -> float:
    """Return the share of the learning rate that step `step` (from 1) has: warm-up, and correction
    of the bias of v.
    """
    return math.sqrt(1 - beta2**step) * min(1.0, step / max(1, warmup))


@lru_cache(maxsize=4)
def _sum_of_squares(step: int, warmup: int, beta2: float) -> float:
    """Return the sum of the squared shares of the steps up to `step`."""
    rising = min(step, warmup)
    total = math.fsum(_share(each, warmup, beta2) ** 2 for each in range(1, rising + 1))
    # After the warm-up a step's square is 1 - beta2^step, of which the powers are a geometric
    # series.
    powers = beta2 ** (rising + 1) * (1 - beta2 ** (step - rising)) / (1 - beta2)
    return total + (step - rising) - powers
