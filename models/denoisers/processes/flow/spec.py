"""Specs of velocity training and of flow sampling. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from denoisers.contract import (
    ModelSpec,
    NoiseSource,
    ObjectiveSpec,
    PositiveInt,
    SamplingSpec,
    Spec,
    TimeDensity,
    Weight,
)
from denoisers.image_spec import ImageModelSpec

if TYPE_CHECKING:
    from torch import Tensor

DCT_BLOCK = 8
"""Height and width of a block of the frequency loss, in pixels: JPEG's."""

SolverName = Literal["euler", "heun", "midpoint", "rk4"]


class UniformTime(TimeDensity):
    """t ~ U[0, 1)."""

    kind: Literal["uniform"] = "uniform"
    """Every time equally often."""

    def draw(self, noise_source: NoiseSource, num: int) -> Tensor:
        """Training times, (num,), drawn under the name `time`."""
        return noise_source.uniform("time", (num,))


class LogitNormalTime(TimeDensity):
    """t = eps + (1 - 2 eps) sigmoid(mean + std u), u ~ N(0, 1) (Esser et al. 2024, arXiv:2403.03206, section 3.1)."""

    kind: Literal["logit_normal"] = "logit_normal"
    """More often in the middle, where the velocity is hardest to tell."""
    mean: float = 0.0
    """Mean of the normal distribution; above 0 leans towards t = 1, below 0 towards t = 0."""
    std: Annotated[float, Field(gt=0)] = 1.0
    """Standard deviation of the normal distribution; small values crowd around the mean."""
    eps: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Smallest distance of t from 0 and from 1."""

    def draw(self, noise_source: NoiseSource, num: int) -> Tensor:
        """Training times, (num,), drawn under the name `time`."""
        t = (self.mean + self.std * noise_source.normal("time", (num,))).sigmoid()
        return self.eps + (1 - 2 * self.eps) * t

    @property
    def bounds(self) -> tuple[float, float]:
        """`eps` and 1 - `eps`."""
        return (self.eps, 1 - self.eps)


TimeSampling = Annotated[UniformTime | LogitNormalTime, Field(discriminator="kind")]


class VelocityWeights(Spec):
    """One weight per loss component; a component with weight 0 is not computed in training."""

    velocity: Weight = 1.0
    """Weight of the mean squared error of the velocity, per pixel."""
    direction: Weight = 0.0
    """Weight of 1 - cos(predicted velocity, velocity), per image (FasterDiT, arXiv:2410.10356)."""

    @model_validator(mode="after")
    def _some_weight(self) -> VelocityWeights:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError("objective.weights are all 0, so nothing trains; set objective.weights.velocity to 1.")
        return self


class VelocitySpec(ObjectiveSpec):
    """Base of an objective spec that regresses the velocity of x_t = (1 - t) x0 + t x1, x0 data, x1 noise."""

    component_prediction = "velocity"

    time: TimeSampling = UniformTime()
    """Distribution of training times. Held-out metrics always use uniform times."""
    weights: VelocityWeights = VelocityWeights()
    """Weight of each loss component."""


class FlowSamplingSpec(SamplingSpec):
    """Integration of the velocity from t = 1 (noise) to t = 0 (data)."""

    solver: SolverName = "euler"
    """Network evaluations a step: euler 1, heun 2, midpoint 2, rk4 4."""
    steps: PositiveInt = 50
    """Equal steps from t = 1 to t = 0."""
    guidance: Annotated[float, Field(ge=0)] = 1.0
    """Classifier-free guidance scale: 1 is the conditional model, more follows the class more closely."""

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError where the model has not learned what `guidance` needs."""
        assert isinstance(model, ImageModelSpec), f"{type(model).__name__} is no image model"
        if self.guidance != 1 and model.num_classes is None:
            raise ValueError(
                f"sampling.guidance={self.guidance:g} needs a conditional model (model.num_classes is null); "
                "set sampling.guidance to 1, or train with model.num_classes."
            )
        if self.guidance != 1 and model.label_dropout == 0:
            raise ValueError(
                f"sampling.guidance={self.guidance:g} needs a null class seen in training (model.label_dropout=0); "
                "set sampling.guidance to 1, or train with model.label_dropout=0.1."
            )
