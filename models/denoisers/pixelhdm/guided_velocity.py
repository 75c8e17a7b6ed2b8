"""Guided velocity of images: the network under a text and classifier-free guidance, for solvers.

B batch, H and W height and width in pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from denoisers.pixelhdm.sample_conditions import NEGATIVE, TEXT_FIELDS
from denoisers.processes.flow.guidance import Conditions, Guidance, guided_prediction
from denoisers.processes.flow.linear_path import point_velocity, repeat_time

MAX_MODULATIONS = 2**28
"""Most values of one pixel block's modulations in a forward pass: 1 GiB in float32. These, and the tensors computed
with them, take most memory: 42 images of 256x256 in a pass, half as many with guidance."""


@dataclass(frozen=True)
class GuidedVelocity:
    """dz/dt at z_t = t x + (1 - t) eps, in z_t's dtype whatever the network's."""

    network: Callable[..., Tensor]
    """PixelHDM, compiled or not."""
    dtype: torch.dtype
    """Dtype of the network's weights."""
    prediction: Literal["velocity", "image"]
    """The network's output."""
    pixel_width: int
    guidance: Guidance
    conditions: Conditions
    """Text fields of all samples. Guidance leads away from those that begin with `negative_`, if there are any, else
    from the null condition."""

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """Compute the velocity of (B, 3, H, W) at the scalar time t, conditional and negative ones in one pass."""
        conditional, negative = self._conditional_and_negative()
        scale = self.guidance.scale_at(float(t))
        return guided_prediction(
            self._predict, x, repeat_time(t, x), conditional, negative, scale, self.guidance.rescale
        )

    def _conditional_and_negative(self) -> tuple[Conditions, Conditions]:
        """Return the text's conditions, and those that guidance leads away from."""
        names = [name for fields in TEXT_FIELDS.values() for name in fields if name in self.conditions]
        text = {name: self.conditions[name] for name in names}
        if NEGATIVE + names[0] in self.conditions:
            return text, {name: self.conditions[NEGATIVE + name] for name in names}
        first = text[names[0]]
        keep = torch.ones(len(first), dtype=torch.bool, device=first.device)
        return text | {"keep": keep}, text | {"keep": ~keep}

    def _predict(self, x: Tensor, t: Tensor, conditions: Conditions) -> Tensor:
        limit = max(1, MAX_MODULATIONS // (6 * self.pixel_width * x.shape[2] * x.shape[3]))
        parts = []
        for first in range(0, len(x), limit):
            part = slice(first, first + limit)
            condition = {name: values[part] for name, values in conditions.items()}
            keep = condition.pop("keep", None)
            parts.append(self.network(x[part].to(self.dtype), t[part], condition, keep).to(x.dtype))
        output = torch.cat(parts)
        if self.prediction == "velocity":
            return output
        return point_velocity(x, t.view(-1, 1, 1, 1), output, noise_at=0)
