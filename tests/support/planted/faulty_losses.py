"""Faults in the training passes of the velocity loss."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from ditlab_models.processes.flow import VelocityObjective

ORIGINAL_LOSS = VelocityObjective.loss

Losses = dict[str, Tensor]


def faulty(
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[int, int, Mapping[str, Tensor], Losses], Losses],
) -> None:
    """Let `fault(step, start, batch, losses)` look at every training pass; what it returns takes
    the losses' place.
    """

    def loss(self: Any, network: Any, batch: Any, noise: Any) -> Losses:
        losses = ORIGINAL_LOSS(self, network, batch, noise)
        # a pass that only counts operations has no stream
        is_training = getattr(noise, "stream", "") == "train"
        return fault(noise.step, noise.start, batch, losses) if is_training else losses

    monkeypatch.setattr(VelocityObjective, "loss", loss)


def poison(losses: Losses, value: float = math.nan) -> Losses:
    """Return losses times `value`."""
    return {name: component * value for name, component in losses.items()}
