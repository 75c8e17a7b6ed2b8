"""Classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598), on velocities."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Conditions = Mapping[str, Tensor]
"""Tensors by name, (batch, ...) each."""
Predict = Callable[[Tensor, Tensor, Conditions], Tensor]
"""(x (batch, ...), t (batch,), conditions) -> prediction in x's shape."""
ScheduleName = Literal["constant", "linear", "cosine", "quadratic"]

SCHEDULES: dict[ScheduleName, Callable[[float], float]] = {
    "constant": lambda t: 1.0,
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "quadratic": lambda t: (1 - t) ** 2,
}
"""Factor of the scale at time t, noise at 0 and data at 1: 1 at first, 0 at the end."""


@dataclass(frozen=True)
class Guidance:
    """Guidance scale over time (noise at t = 0, data at t = 1)."""

    scale: float
    """1 is the conditional prediction as it is."""
    schedule: ScheduleName = "constant"
    min_scale: float = 0.0
    """Lower bound of the scheduled scale; below 1, guidance leads away from the condition."""
    interval: tuple[float, float] = (0.0, 1.0)
    """(t_start, t_end): outside t_start < t < t_end the scale is 1 (Kynkaanniemi et al. 2024, arXiv:2404.07724)."""
    rescale: float = 0.0
    """phi in [0, 1]: share to which the guided prediction gets the conditional one's standard deviation."""

    @property
    def is_plain(self) -> bool:
        """True if the scale is 1 at all times."""
        return self.scale == 1 and (self.schedule == "constant" or self.min_scale == 1)

    def scale_at(self, t: float) -> float:
        """Guidance scale at time t."""
        t_start, t_end = self.interval
        if not t_start < t < t_end:
            return 1.0
        return max(self.scale * SCHEDULES[self.schedule](t), self.min_scale)


def guided_prediction(
    predict: Predict,
    x: Tensor,
    t: Tensor,
    conditions: Conditions,
    negative: Conditions,
    scale: float,
    rescale: float = 0.0,
) -> Tensor:
    """Predict v_negative + scale (v - v_negative) in one pass, then rescale it; at scale 1 it is v, at no extra cost.

    `negative` are the conditions that guidance leads away from, in the shapes of `conditions`: null conditions,
    negative prompts.
    """
    if scale == 1:
        return predict(x, t, conditions)
    both = {name: torch.cat((values, negative[name])) for name, values in conditions.items()}
    v, v_negative = predict(torch.cat((x, x)), torch.cat((t, t)), both).chunk(2)
    return rescaled(v_negative + scale * (v - v_negative), v, rescale)


def rescaled(v_guided: Tensor, v: Tensor, phi: float) -> Tensor:
    """phi v_guided sigma / sigma_guided + (1 - phi) v_guided (Lin et al. 2023, arXiv:2305.08891, section 3.4).

    sigma are standard deviations over all values of a sample.
    """
    if phi == 0:
        return v_guided
    axes = tuple(range(1, v.ndim))
    ratio = v.std(axes, keepdim=True) / v_guided.std(axes, keepdim=True)
    return (phi * ratio + (1 - phi)) * v_guided
