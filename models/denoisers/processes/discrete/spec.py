"""The spec of a noise schedule over the uniform graph. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from denoisers.contract import Spec


class TokenNoiseSchedule(Spec):
    """Noise sigma by time t, from 0 (least noise) to 1 (Lou et al. 2024, arXiv:2310.16834, section 5.1)."""

    kind: Literal["geometric", "loglinear"] = "geometric"
    """`geometric`: sigma(t) = sigma_min^(1 - t) sigma_max^t. `loglinear`: the share of tokens that have moved,
    1 - e^-sigma(t), rises linearly."""
    sigma_min: Annotated[float, Field(gt=0)] = 1e-3
    """Noise at t = 0: about this share of tokens is then replaced by random ones."""
    sigma_max: Annotated[float, Field(gt=0, le=30)] = 1.0
    """Noise at t = 1. e^-sigma_max of the tokens are still their own there: 37% at 1, none to speak of at 20. What the
    sampler's uniform start then has wrong is `prior_kl`, a part of every bound."""

    @model_validator(mode="after")
    def _rises(self) -> TokenNoiseSchedule:
        if self.sigma_max <= self.sigma_min:
            raise ValueError(
                f"objective.noise.sigma_max={self.sigma_max:g} is not above "
                f"objective.noise.sigma_min={self.sigma_min:g}; set objective.noise.sigma_max to 1 or more "
                "and objective.noise.sigma_min well below it."
            )
        return self
