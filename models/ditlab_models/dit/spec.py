"""The DiT family's specs. Imports no torch; the defaults are its MNIST setting (12,351,760
parameters).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ditlab_models.checks import check_mlp_ratio, check_multiple
from ditlab_models.contract import PositiveFloat, PositiveInt
from ditlab_models.processes.specs import FlowSamplingSpec, ImageModelSpec, VelocitySpec


class DiTSpec(ImageModelSpec):
    """Diffusion transformer over image patches (Peebles and Xie 2023, arXiv:2212.09748).

    README.md lists the values that make it the published DiT, SiT, or diffusers'
    `DiTTransformer2DModel`.
    """

    added_fields: ClassVar[Mapping[str, Any]] = {
        **ImageModelSpec.added_fields,
        "condition_ratio": 4,
        "time_frequencies": "width",
        "embeddings": "shared",
        "positions": "row_first",
        "gelu": "exact",
        "norm_eps": 1e-5,
        "mlp_norm_eps": None,
        "final_norm": "affine",
        "variance_channels": "none",
        "initial_weights": "torch",
    }

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
    mlp_ratio: PositiveFloat = 4.0
    """Hidden width of a block's MLP, in multiples of `width`."""
    adaln: Literal["scale_shift", "zero"] = "scale_shift"
    """Conditioning of a block on time and class: `scale_shift` is an ungated scale and shift before
    attention and before the MLP; `zero` is adaLN-Zero, six-way and gated, under which every block
    starts as the identity."""
    condition_ratio: PositiveInt = 4
    """Width of the time and class embedding, in multiples of `width`; 1 in the published DiT."""
    time_frequencies: Literal["width", "dit", "diffusers"] = "width"
    """Sinusoid of time: `width` has `width` numbers, sine before cosine, frequencies 10000^(-j /
    (width / 2 - 1)); `dit` has 256, cosine before sine, 10000^(-j / 128); `diffusers` the same with
    10000^(-j / 127)."""
    embeddings: Literal["shared", "per_block"] = "shared"
    """Embedding of time and class: one for all blocks, or one for each block, the first's before
    the head as well (diffusers)."""
    positions: Literal["row_first", "column_first"] = "row_first"
    """Fixed table of positions: the first half of a row of it encodes the patch's row, with
    frequencies 10000^(-i / (width / 4 - 1)); or its column, with 10000^(-i / (width / 4)), as
    published."""
    gelu: Literal["exact", "tanh"] = "exact"
    """GELU of a block's MLP: exact, or the tanh approximation of the published DiT."""
    norm_eps: PositiveFloat = 1e-5
    """Number added to the variance in every LayerNorm; 1e-6 in the published DiT."""
    mlp_norm_eps: PositiveFloat | None = None
    """Number added to the variance in the LayerNorm before a block's MLP, 1e-5 in diffusers; null:
    `norm_eps`.
    """
    final_norm: Literal["affine", "adaln"] = "affine"
    """LayerNorm before the head: with a weight and a bias of its own, or modulated by time and
    class as published.
    """
    variance_channels: Literal["none", "predicted", "unused"] = "none"
    """Channels of the head beside those of an image: `predicted`, as many again, for
    objective.variance=learned_range of objective.process=gaussian (published DiT); `unused`,
    weights whose output is dropped (SiT)."""
    initial_weights: Literal["torch", "dit"] = "torch"
    """Distribution of initial weights: torch's own for each layer, or that of facebookresearch/DiT
    (Glorot's uniform one, biases 0, standard deviation 0.02 in the embedding of time). Zeros are
    the same in both."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> DiTSpec:
        check_multiple(
            "model.image_size",
            self.image_size,
            self.patch_size,
            f"model.patch_size={self.patch_size}",
        )
        both = math.lcm(self.num_heads, 4)
        check_multiple(
            "model.width", self.width, self.num_heads, f"model.num_heads={self.num_heads}", both
        )
        position = "4 (sine and cosine of row and column get a quarter of it each)"
        check_multiple("model.width", self.width, 4, position, both)
        check_mlp_ratio(self.width, self.mlp_ratio)
        if self.mlp_norm_eps is not None and self.adaln != "zero":
            raise ValueError(
                f"model.mlp_norm_eps={self.mlp_norm_eps:g} needs model.adaln=zero (it is "
                f"{self.adaln}); set model.mlp_norm_eps to null, or model.adaln to zero."
            )
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
        return self.condition_ratio * self.width

    @property
    def time_width(self) -> int:
        """Width of the sinusoid of time."""
        if self.time_frequencies == "width":
            return self.width
        return 256

    @property
    def head_channels(self) -> int:
        """Channels that the head gives."""
        if self.variance_channels == "none":
            return self.channels
        return 2 * self.channels

    @property
    def predicts_variance(self) -> bool:
        """True for an output of 2 `channels`, the second half of which a learned variance is read
        from.
        """
        return self.variance_channels == "predicted"


class DiTObjectiveSpec(VelocitySpec):
    """Velocity regression."""


class DiTSamplingSpec(FlowSamplingSpec):
    """Flow sampling."""
