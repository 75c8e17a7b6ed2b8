"""The learning rate that falls with the inverse square root of the step."""

import math
from typing import Annotated, Literal

from pydantic import Field

from ditlab.spec.optimization import Count, RisingSchedule, Warmup


class InverseSqrtSchedule(RisingSchedule):
    """Linear warm-up, a fall with the inverse square root of the step, a linear cool-down at the run's end.

    As in Zhai et al. 2022 (arXiv:2106.04560, section 3.5), the rate before the cool-down does not depend on the run's
    length: at step `step`, counted from 0, it is 1 / sqrt(max(1, (step + 1) / timescale)) of the optimiser's.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    """Linear rise, fall with 1 / sqrt(step), linear fall at the end."""
    timescale: Count = 10_000
    """Steps at which the fall begins."""
    cooldown: Warmup = 0
    """Last steps of the run, over which the rate falls in a straight line down to `final`."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Value at the end of the cool-down, as a share of the rate that it begins from."""

    def after_warmup(self, step: int, total: int, length: int) -> float:
        """Fall with the inverse square root, and in the last `cooldown` steps in a straight line too."""
        start = total - self.cooldown
        if step < start:
            return self._by_root(step)
        done = (step + 1 - start) / self.cooldown
        return self._by_root(start) * (1 - done * (1 - self.final))

    def check_length(self, total: int, epoch_steps: int) -> None:
        """Raise ValueError where warm-up and cool-down have no place in the run."""
        super().check_length(total, epoch_steps)
        warmup = self.warmup_steps(epoch_steps)
        if self.cooldown > total - warmup:
            raise ValueError(
                f"schedule.cooldown={self.cooldown} is longer than the {total - warmup} steps after the warm-up of "
                f"{warmup}; set it to at most {total - warmup}."
            )

    def _by_root(self, step: int) -> float:
        return 1 / math.sqrt(max(1.0, (step + 1) / self.timescale))
