"""Clipping of large gradients."""

from typing import Annotated, Literal

from pydantic import Field

from denoisers.contract import Spec
from ditlab.spec.optimisation.numbers import Fraction, Positive


class NoClip(Spec):
    """Gradients as they are."""

    kind: Literal["none"] = "none"
    """No clipping."""


class NormClip(Spec):
    """Clip the global gradient norm (Pascanu et al. 2013, arXiv:1211.5063)."""

    kind: Literal["norm"] = "norm"
    """Clipping by global L2 norm."""
    max_norm: Positive = 1.0
    """Norm above which gradients are scaled down to it."""


class ZClip(Spec):
    """Adaptive clipping by the z-score of the gradient norm (Kumar et al. 2025, arXiv:2504.02507).

    A norm more than `z` standard deviations above the moving mean is clipped to mean + z^2 / its own z-score standard
    deviations; the clipped norm enters mean and variance. Costs a wait for the GPU in every step.
    """

    kind: Literal["zclip"] = "zclip"
    """Clipping by z-score, as published."""
    z: Positive = 2.5
    """Standard deviations above the mean from which a norm counts as a spike."""
    decay: Fraction = 0.97
    """Decay of the moving mean and variance (the paper's alpha)."""
    warmup: Annotated[int, Field(ge=1, le=10**6)] = 25
    """Steps whose norms give the first mean and variance; only `max_norm` clips them."""
    max_norm: Positive | None = 1.0
    """Upper bound, always in force; null for none."""


class RatioZClip(Spec):
    """Adaptive clipping at a multiple of the gradient norm's moving average.

    The average takes the clipped norm after the limit is set; the first norm starts it and is not clipped. Costs a wait
    for the GPU in every step.
    """

    kind: Literal["zclip_ratio"] = "zclip_ratio"
    """Clipping by ratio to the moving average."""
    ratio: Annotated[float, Field(ge=1)] = 2.5
    """Limit, as a multiple of the average."""
    decay: Fraction = 0.99
    """Decay of the moving average."""


AdaptiveClip = ZClip | RatioZClip
ClipSpec = Annotated[NoClip | NormClip | ZClip | RatioZClip, Field(discriminator="kind")]
