"""Densities of training times of the language model. Imports no torch at run time.

s is a time between 0 and 1, B batch, N times of a sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from denoisers.contract import NoiseSource, Spec

if TYPE_CHECKING:
    from torch import Tensor

TINY = 1e-6
"""Distance from 0 and 1 within which a density is taken for that at the distance."""


@dataclass(frozen=True)
class DrawnTimes:
    """Times, and what a loss at them counts for: (B, N) float32 each."""

    s: Tensor
    weight: Tensor | None
    """Factor on the loss; None: 1 everywhere."""


class UniformTokenTime(Spec):
    """s ~ U[0, 1)."""

    kind: Literal["uniform"] = "uniform"
    """Every time equally often."""

    def draw(self, noise_source: NoiseSource, shape: tuple[int, int]) -> DrawnTimes:
        """Draw times under the name `time`."""
        return DrawnTimes(noise_source.uniform("time", shape), None)


class BellTokenTime(Spec):
    """s = sigmoid(mean + std u), u ~ N(0, 1) (Esser et al. 2024, arXiv:2403.03206, section 3.1), or uniform at times.

    The uniform share bounds the weights of times that the bell hardly draws (defensive mixture: Hesterberg 1995,
    Technometrics 37, 185): without it their variance would be infinite.
    """

    kind: Literal["logit_normal"] = "logit_normal"
    """More often around one time."""
    mean: float = 0.0
    """Mean of the normal distribution; above 0 leans towards s = 1 (most noise), below 0 towards s = 0."""
    std: Annotated[float, Field(gt=0)] = 1.0
    """Standard deviation of the normal distribution; small values crowd around the mean."""
    uniform_share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of times that are drawn uniformly; no loss counts for more than 1 / `uniform_share`."""
    weighting: Literal["integral", "drawn"] = "integral"
    """`integral`: losses are divided by the density of their times, so that the training loss stays the integral of the
    bound and the density decides its variance alone; `drawn`: every draw counts once, dense times for more."""

    def draw(self, noise_source: NoiseSource, shape: tuple[int, int]) -> DrawnTimes:
        """Draw times under the names `time`, `time_bell` and `time_choice`."""
        bell = (self.mean + self.std * noise_source.normal("time_bell", shape)).sigmoid()
        is_uniform = noise_source.uniform("time_choice", shape) < self.uniform_share
        s = noise_source.uniform("time", shape).where(is_uniform, bell)
        return DrawnTimes(s, None if self.weighting == "drawn" else 1 / self.density(s))

    def density(self, s: Tensor) -> Tensor:
        """Return the density at times s, in their shape."""
        within = s.clamp(TINY, 1 - TINY)
        z = (within.logit() - self.mean) / self.std
        bell = (-0.5 * z.square()).exp() / (self.std * math.sqrt(2 * math.pi) * within * (1 - within))
        return self.uniform_share + (1 - self.uniform_share) * bell


TokenTime = Annotated[UniformTokenTime | BellTokenTime, Field(discriminator="kind")]
