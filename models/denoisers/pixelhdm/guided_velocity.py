"""The network as solvers see it: a velocity of images, led by texts.

B batch, H and W height and width in pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from denoisers.pixelhdm.sample_conditions import NEGATIVE, TEXT_FIELDS
from denoisers.processes.flow.guidance import Conditions, Guidance, guided
from denoisers.processes.flow.linear_path import point_velocity

NUMBERS_AT_ONCE = 2**28
"""Modulations of pixels in one pixel block, in one pass of the network: 1 GiB in float32. These and what is made with
them take most memory: 42 images of 256x256 at once, guided ones half as many."""


@dataclass(frozen=True)
class GuidedVelocity:
    """dz/dt at z_t = t x + (1 - t) eps, float32 whatever the network's dtype."""

    network: Callable[..., Tensor]
    """PixelHDM, compiled or not."""
    dtype: torch.dtype
    """Of its weights."""
    prediction: Literal["velocity", "image"]
    """What it answers."""
    pixel_width: int
    guidance: Guidance
    conditions: Conditions
    """The text fields of all samples; those that begin with `negative_`, where there are any, are led away from, else
    the null condition is."""

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """(B, 3, H, W) at the scalar time t -> the same shape: conditional and unconditional in one pass."""
        asked, others = self._asked_and_others()
        scale = self.guidance.scale_at(float(t))
        return guided(self._predict, x, t.to(x).expand(len(x)), asked, others, scale, self.guidance.rescale)

    def _asked_and_others(self) -> tuple[Conditions, Conditions]:
        names = [name for fields in TEXT_FIELDS.values() for name in fields if name in self.conditions]
        text = {name: self.conditions[name] for name in names}
        if NEGATIVE + names[0] in self.conditions:
            return text, {name: self.conditions[NEGATIVE + name] for name in names}
        some = text[names[0]]
        keep = torch.ones(len(some), dtype=torch.bool, device=some.device)
        return text | {"keep": keep}, text | {"keep": ~keep}

    def _predict(self, x: Tensor, t: Tensor, conditions: Conditions) -> Tensor:
        limit = max(1, NUMBERS_AT_ONCE // (6 * self.pixel_width * x.shape[2] * x.shape[3]))
        parts = []
        for first in range(0, len(x), limit):
            some = slice(first, first + limit)
            condition = {name: values[some] for name, values in conditions.items()}
            keep = condition.pop("keep", None)
            parts.append(self.network(x[some].to(self.dtype), t[some], condition, keep).float())
        output = torch.cat(parts)
        if self.prediction == "velocity":
            return output
        return point_velocity(x, t.view(-1, 1, 1, 1), output, noise_at=0)
