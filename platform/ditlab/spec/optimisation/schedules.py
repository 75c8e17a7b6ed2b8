"""Learning-rate schedules."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from denoisers.contract import Spec
from ditlab.spec.optimisation.numbers import Count, Warmup


class _Rising(Spec):
    """Base of the schedules that begin with a warm-up."""

    warmup: Warmup = 0
    """Steps of linear rise from 0."""
    warmup_epochs: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    """The same in passes over the training data, instead of `warmup`."""

    @model_validator(mode="after")
    def _one_length(self) -> "_Rising":
        if self.warmup and self.warmup_epochs:
            raise ValueError(
                f"schedule.warmup={self.warmup} and schedule.warmup_epochs={self.warmup_epochs:g} are two lengths of "
                "one warm-up; set one of them to 0."
            )
        return self

    def warmup_steps(self, epoch_steps: int) -> int:
        """Steps of the warm-up where an epoch has so many."""
        return round(self.warmup_epochs * epoch_steps) if self.warmup_epochs else self.warmup


class ConstantSchedule(_Rising):
    """The optimiser's learning rate, all the way."""

    kind: Literal["constant"] = "constant"
    """No change over time."""


class WarmupCosineSchedule(_Rising):
    """Linear warm-up, then half a cosine down to `final` times the learning rate at the last step."""

    kind: Literal["warmup_cosine"] = "warmup_cosine"
    """Linear rise, cosine fall."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Value at the end of the cosine, as a share of the learning rate."""


class SteppedCosineRestartSchedule(Spec):
    """Cosine from peak to valley in every cycle; peak and valley shrink from cycle to cycle, down to a floor."""

    kind: Literal["stepped_cosine_restart"] = "stepped_cosine_restart"
    """Restarting cosine whose peak and valley decay."""
    cycle: Count | None = None
    """Steps of a cycle; null is one epoch."""
    valley: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The first cycle's lowest point, as a share of the learning rate."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Factor on peak and valley from one cycle to the next."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Lower bound of peak and valley, as a share of the learning rate."""


ScheduleSpec = Annotated[
    ConstantSchedule | WarmupCosineSchedule | SteppedCosineRestartSchedule, Field(discriminator="kind")
]
