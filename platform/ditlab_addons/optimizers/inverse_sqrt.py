"""Learning rate that falls with the inverse square root of the step (Zhai et al. 2022,
arXiv:2106.04560, section 3.5).

No rate before the cool-down depends on the run's length, so that a run may go on for as long as one
likes, and several cool-downs may be trained from one of its checkpoints.
"""

import math
from typing import Literal

from ditlab.spec.optimization import Count, RisingSchedule, Warmup
from ditlab_models.contract import Share


class InverseSqrtSchedule(RisingSchedule):
    """Linear warm-up, a fall with the inverse square root of the step, a linear cool-down at the
    run's end.

    Step `step`, counted from 0, has 1 / sqrt(max(1, (step + 1) / timescale)) of the optimiser's
    learning rate; in the warm-up less, by a straight line from 0, and in the cool-down less, by a
    straight line down to `final`. Rates before the cool-down of a longer run are those of a shorter
    one.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    """Linear rise, fall with 1 / sqrt(step), linear fall at the end."""
    timescale: Count = 10_000
    """Steps at which the fall begins; up to there the rate is the optimiser's."""
    cooldown: Warmup = 0
    """Last steps of the run, over which the rate falls in a straight line too, down to `final`; 0
    for none, in a run that shall go on. A resume may set it."""
    final: Share = 0.0
    """Value at the end of the cool-down, as a share of the rate that it begins from."""

    def after_warmup(self, step: int, total: int, length: int) -> float:
        """Fall with the inverse square root, and in the last `cooldown` steps in a straight line
        too.
        """
        start = total - self.cooldown
        if step < start:
            return self._by_root(step)
        # A straight line between the rate at its begin and that of the last step, and nothing below
        # that.
        done = min(1.0, (step + 1 - start) / self.cooldown)
        return self._by_root(start) * (1 - done * (1 - self.final))

    def check_length(self, total: int, epoch_steps: int) -> None:
        """Raise ValueError where warm-up and cool-down have no place in the run."""
        super().check_length(total, epoch_steps)
        warmup = self.warmup_steps(epoch_steps)
        most = total - warmup
        if self.cooldown > most:
            raise ValueError(
                f"schedule.cooldown={self.cooldown} is longer than the {most} steps after the "
                f"warm-up of {warmup}; set it to at most {most}."
            )
        if warmup > self.timescale:
            raise ValueError(
                f"schedule.timescale={self.timescale} ends within the warm-up of {warmup} "
                "steps, after which the rate would fall at once; set schedule.timescale to at "
                f"least {warmup}."
            )

    def _by_root(self, step: int) -> float:
        """Return the share of the learning rate that a step has outside warm-up and cool-down."""
        return 1 / math.sqrt(max(1.0, (step + 1) / self.timescale))
