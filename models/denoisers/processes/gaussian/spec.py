"""The spec of a discrete-time Gaussian noise schedule. Imports no torch.

Samplers, and predictions in one pass, begin with N(0, I) at the last timestep T - 1. In training, x_{T-1} holds
sqrt(alpha_bar_{T-1}) x0, and a schedule under which that is much (`MOST_SIGNAL`) biases both. The default's is 4.0e-5.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field, model_validator

from denoisers.contract import Spec

Beta = Annotated[float, Field(gt=0, lt=1)]

MOST_SIGNAL = 0.05
"""Largest alpha_bar at the last timestep that passes for noise."""


class LinearBetas(Spec):
    """beta_t rises linearly over the timesteps (Ho et al. 2020, arXiv:2006.11239, section 4)."""

    steps: Annotated[int, Field(ge=2, le=100_000)] = 1000
    """Timesteps T; t runs from 0 (least noise) to T - 1."""
    beta_start: Beta = 1e-4
    """Share of variance that timestep 0 replaces by noise."""
    beta_end: Beta = 0.02
    """The same of timestep T - 1."""

    @model_validator(mode="after")
    def _rises(self) -> LinearBetas:
        if self.beta_end < self.beta_start:
            raise ValueError(
                f"objective.noise.beta_end={self.beta_end:g} is below objective.noise.beta_start={self.beta_start:g}; "
                f"set objective.noise.beta_end to {self.beta_start:g} or more."
            )
        return self

    def check_ends_in_noise(self) -> None:
        """Raise ValueError where alpha_bar at the last timestep is above MOST_SIGNAL."""
        rise = (self.beta_end - self.beta_start) / (self.steps - 1)
        left = math.prod(1 - self.beta_start - rise * t for t in range(self.steps))
        if left <= MOST_SIGNAL:
            return
        # alpha_bar <= exp(-sum of betas) = exp(-T (beta_start + beta_end) / 2), which is 0.0498 where the sum is 3
        enough = 1.06 * (6 / self.steps - self.beta_start)  # 6% more, as two digits are shown
        remedy = f"set objective.noise.beta_end to {enough:.2g} or more, or " if enough < 1 else ""
        raise ValueError(
            f"objective.noise.beta_end={self.beta_end:g} with objective.noise.beta_start={self.beta_start:g} and "
            f"objective.noise.steps={self.steps} leaves alpha_bar={left:.3g} at the last timestep, and sampling begins "
            f"with pure noise there (at most {MOST_SIGNAL}); {remedy}raise objective.noise.steps."
        )
