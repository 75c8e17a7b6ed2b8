"""The section `scheduler: {kind: race}` of a sweep, and the sweeps that it cannot race. No
torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import Count
from ditlab.spec.sweep import Reduction, Scheduler, Sweep
from ditlab.spec.sweep_space import enumerate_trials, off_evaluations, unshared_axes
from ditlab.spec.values import format_value


class SeedRace(Scheduler):
    """Configurations compared by paired differences over seeds at ever longer rungs
    (docs/addons/race.md).
    """

    chooser: ClassVar[str] = "ditlab_addons.race.race:RaceChooser"
    takes_seed_range: ClassVar[bool] = True
    may_change: ClassVar[tuple[str, ...]] = ("max_steps",)
    forecast_note: ClassVar[str] = (
        "stops configurations that are behind, and adds seeds where configurations are close: "
        "it may take more"
    )

    kind: Literal["race"] = "race"
    """Drops configurations that are behind, adds seeds where configurations are close, and names a
    winner only where it is sure.
    """
    reduction: Reduction = 3
    """The next rung is so many times later."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Chance that the whole race drops no best configuration, and names no winner among equal
    ones.
    """
    indifference: Annotated[float, Field(ge=0)] = 0.0
    """Configurations that differ by less in the metric are equal; the race ends where all that are
    left are.
    """
    max_steps: Count | None = None
    """Training steps of all runs together: the race ends before it compares at more seeds or steps
    than these allow.
    """

    def rungs(self, total_steps: int) -> tuple[int, ...]:
        """Return the steps at which configurations are compared: `grace`, `reduction` times as
        many, ..., and the last step.
        """
        rungs = []
        step = self.grace
        while step < total_steps:
            rungs.append(step)
            step *= self.reduction
        return (*rungs, total_steps)

    def problems(self, sweep: Sweep, reference: Experiment) -> Iterator[str]:
        """Find why a race cannot compare configurations over seeds at its rungs."""
        yield from self._problems_of_configurations(sweep)
        every = reference.evaluation.every or 1
        yield from off_evaluations(
            "grace", self.grace, every, "at which a race compares configurations"
        )
        if reference.training.stop:
            yield (
                "training.stop ends runs before the rungs at which scheduler.kind=race "
                "compares them; set training.stop to null, or scheduler.kind to none."
            )
        if not sweep.metrics[0].startswith(("eval/", "quality/")):
            yield (
                f"metric={sweep.metrics[0]} is not measured with fixed draws, so "
                "configurations of a race would differ by theirs; rank by a held-out metric, "
                "such as eval/velocity."
            )
        for path in unshared_axes(sweep):
            yield (
                f"space.{path} changes which draws a trial sees, so configurations of "
                f"scheduler.kind=race would be no pairs; take the axis out, set {path} under "
                "`fixed`, or set scheduler.kind to none."
            )

    def _problems_of_configurations(self, sweep: Sweep) -> Iterator[str]:
        num_seeds = len(sweep.first_seeds)
        if num_seeds < 2:
            yield (
                f"seeds={format_value(sweep.seeds)} gives a race no pairs, as one seed tells "
                "nothing of other seeds; set seeds to {min: 3, max: 12}."
            )
        if sweep.search.kind == "optuna":
            yield (
                "search.kind=optuna proposes configurations from the ends of others, and "
                "scheduler.kind=race starts all configurations at once; set search.kind to "
                "random or grid."
            )
        num_configurations = len(enumerate_trials(sweep) or ())
        if num_configurations == 1:
            yield (
                f"trials={format_value(sweep.trials)} is one configuration, and a race "
                "compares at least two; set trials to 2 or more, or give an axis more values."
            )
        first = self.grace * num_configurations * num_seeds
        if self.max_steps is not None and self.max_steps < first:
            yield (
                f"scheduler.max_steps={self.max_steps} is less than the first rung takes, "
                f"{first:,} steps of {num_configurations} configurations under {num_seeds} "
                "seeds; raise it, or lower scheduler.grace."
            )
