"""The U-Net family's specs. Imports no torch; the defaults are its MNIST setting (1,837,185
parameters).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ditlab_models.checks import check_multiple
from ditlab_models.contract import PositiveInt
from ditlab_models.processes.specs import FlowSamplingSpec, ImageModelSpec, VelocitySpec

NUM_GROUPS = 8
"""Groups of every GroupNorm."""


class UNetSpec(ImageModelSpec):
    """A U-Net of three resolutions (Ronneberger et al. 2015, arXiv:1505.04597), told the time by a
    shift.
    """

    family: Literal["unet"] = "unet"
    """The convolutional U-Net."""
    width: PositiveInt = 64
    """Feature channels at full resolution; twice as many at a half and a quarter of it."""
    time_width: Annotated[int, Field(ge=4)] = 128
    """Width of the time and class embedding."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> UNetSpec:
        check_multiple("model.image_size", self.image_size, 4, "4 (it is halved twice)")
        check_multiple(
            "model.width", self.width, NUM_GROUPS, f"{NUM_GROUPS} (the groups of its norms)"
        )
        check_multiple("model.time_width", self.time_width, 2, "2 (half sines, half cosines)")
        return self


class UNetObjectiveSpec(VelocitySpec):
    """Velocity regression."""


class UNetSamplingSpec(FlowSamplingSpec):
    """Flow sampling."""
