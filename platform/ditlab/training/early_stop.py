"""Early stop of a run by the metrics of its evaluations: the decision, and the step at which it acts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ditlab.spec.optimization import EarlyStop

STOP_TAG = "ditlab.early_stop"
"""Tag with the step after which evaluations ended a run, and the values that did: a resume ends at the same step."""
Point = tuple[int, float]
"""Step and value of an evaluation."""


@dataclass
class StopDecision:
    """Values of the metric so far, and what follows from them."""

    spec: EarlyStop
    points: list[Point] = field(default_factory=list)

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take in the metrics of an evaluation; those of an earlier step, and without the spec's, change nothing."""
        if self.spec.metric in values and (not self.points or step > self.points[-1][0]):
            self.points.append((step, values[self.spec.metric]))

    def best(self) -> Point:
        """Return the last point that was better than all before it, as NaN never is; step -1 without any."""
        sign = 1 if self.spec.mode == "min" else -1
        best = (-1, math.nan)
        for step, value in self.points:
            if math.isnan(value):
                continue
            if best[0] < 0 or sign * value < sign * best[1] - self.spec.min_delta:
                best = (step, value)
        return best

    def holds(self) -> bool:
        """Return True once `patience` evaluations in a row were no better."""
        best = self.best()[0]
        return sum(step > best for step, _ in self.points) >= self.spec.patience

    def describe(self, step: int) -> str:
        """Text of the tag for a run that ends after `step` steps."""
        (at, best), spec = self.best(), self.spec
        latest = ", ".join(f"{value:.6g} at step {number}" for number, value in self.points[-spec.patience :])
        than = f"no better than {best:.6g} at step {at}" if at >= 0 else "no number"
        than += f" in {spec.patience} evaluations"
        return f"{step}: {spec.metric} was {than} ({latest})"


def recorded_stop(tags: Mapping[str, str]) -> int | None:
    """Return the step after which a run was ended, by its tags; None where it was not."""
    step = tags.get(STOP_TAG, "").partition(":")[0]
    return int(step) if step.isdecimal() else None
