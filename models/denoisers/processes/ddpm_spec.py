"""The spec of a discrete-time Gaussian noise schedule. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from denoisers.contract import Spec

if TYPE_CHECKING:
    from denoisers.processes.ddpm import NoiseSchedule

Beta = Annotated[float, Field(gt=0, lt=1)]


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

    def build(self) -> NoiseSchedule:
        from denoisers.processes.ddpm import linear_schedule

        return linear_schedule(self.steps, self.beta_start, self.beta_end)
