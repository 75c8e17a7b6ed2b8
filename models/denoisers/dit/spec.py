"""The DiT family's specs. Imports no torch; the defaults are its MNIST setting (12,351,760 parameters)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from denoisers.checks import check_mlp_ratio, check_multiple
from denoisers.contract import PositiveInt
from denoisers.processes.specs import FlowSamplingSpec, ImageModelSpec, VelocitySpec


class DiTSpec(ImageModelSpec):
    """Diffusion transformer over image patches (Peebles and Xie 2023, arXiv:2212.09748)."""

    family: Literal["dit"] = "dit"
    """The diffusion transformer."""
    patch_size: PositiveInt = 4
    """Height and width of a patch, in pixels; a patch is a token."""
    width: Annotated[int, Field(ge=8)] = 256
    """Numbers a token carries."""
    depth: PositiveInt = 6
    """Transformer blocks."""
    num_heads: PositiveInt = 8
    """Attention heads of a block; each is width / num_heads wide."""
    mlp_ratio: Annotated[float, Field(gt=0)] = 4.0
    """Hidden width of a block's MLP, in multiples of `width`."""
    adaln: Literal["scale_shift", "zero"] = "scale_shift"
    """Conditioning of a block on time and class: `scale_shift` is an ungated scale and shift before attention and
    before the MLP; `zero` is adaLN-Zero, six-way and gated, under which every block starts as the identity."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> DiTSpec:
        check_multiple("model.image_size", self.image_size, self.patch_size, f"model.patch_size={self.patch_size}")
        both = math.lcm(self.num_heads, 4)
        check_multiple("model.width", self.width, self.num_heads, f"model.num_heads={self.num_heads}", both)
        position = "4 (sine and cosine of row and column get a quarter of it each)"
        check_multiple("model.width", self.width, 4, position, both)
        check_mlp_ratio(self.width, self.mlp_ratio)
        return self

    @property
    def num_rows(self) -> int:
        """Rows, and columns, of patches."""
        return self.image_size // self.patch_size

    @property
    def mlp_width(self) -> int:
        """Hidden width of a block's MLP."""
        return round(self.width * self.mlp_ratio)

    @property
    def condition_width(self) -> int:
        """Width of the time and class embedding."""
        return 4 * self.width


class DiTObjectiveSpec(VelocitySpec):
    """Velocity regression."""


class DiTSamplingSpec(FlowSamplingSpec):
    """Flow sampling."""
