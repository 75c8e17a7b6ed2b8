"""The spec of the PixelHDM network. Imports no torch; the defaults are its base setting (356,705,879 parameters)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from denoisers.checks import check_mlp_ratio, check_multiple
from denoisers.contract import ANY, BatchField, FieldKnobs, ModelSpec, PositiveInt

CHANNELS = 3
"""Colour channels of an image: red, green, blue."""
EXAMPLE_SIDE = 256
"""Height and width of example images."""
NUM_BYTES = 256
"""Tokens of the learned text encoder: bytes of UTF-8, of which 0 is padding."""


class PixelHDMSpec(ModelSpec):
    """Text to image in two paths: a transformer over patches and text for what is shown, and a light one over pixels,
    told by the first, for detail. Images are RGB, of any size up to `max_resolution`."""

    family: Literal["pixelhdm"] = "pixelhdm"
    """Dual-path diffusion of images in pixel space."""
    width: Annotated[int, Field(ge=2)] = 1024
    """Numbers a token of the patch path carries: that of the text features (Qwen3-0.6B has 1024)."""
    pixel_width: PositiveInt = 16
    """Numbers a pixel of the pixel path carries."""
    patch_size: PositiveInt = 16
    """Height and width of a patch, in pixels."""
    patch_depth: PositiveInt = 16
    """Blocks of the patch path."""
    pixel_depth: PositiveInt = 4
    """Blocks of the pixel path."""
    num_heads: PositiveInt = 16
    """Query heads of an attention; each is width / num_heads wide."""
    num_kv_heads: PositiveInt = 4
    """Key and value heads of an attention, each shared by num_heads / num_kv_heads query heads."""
    mlp_ratio: Annotated[float, Field(gt=0)] = 3.0
    """Hidden width of a SwiGLU, in multiples of `width` in the patch path and of `pixel_width` in the pixel path."""
    bottleneck_width: PositiveInt = 256
    """Width that a patch is squeezed to before it becomes a token."""
    time_width: Annotated[int, Field(ge=2)] = 256
    """Width of the sinusoid of time."""
    max_resolution: PositiveInt = 1024
    """Largest height and width of an image, in pixels."""
    positions: Literal["mrope", "learned"] = "mrope"
    """Position encoding of tokens: `mrope` turns queries and keys by text position, row and column; `learned` adds
    trained vectors to the tokens."""
    mrope_widths: Annotated[tuple[int, int, int], Field(strict=False)] = (16, 24, 24)
    """Entries of a head that `mrope` turns by text position, by row and by column."""
    rope_base: Annotated[float, Field(gt=1)] = 10000.0
    """Base of the rotations' frequencies: with d entries, pair j turns by base^(-2 j / d) radians a position."""
    gate: Literal["headwise", "elementwise"] = "headwise"
    """Gate of an attention's output, computed from its input: a number for each head, or for each entry."""
    adaln_init_gain: float = 1e-4
    """Initial scale gamma of the pixel path's (1 + gamma) norm(x) + beta."""
    pixel_residual: Literal["block", "double"] = "block"
    """Who adds its input to a token compaction: the pixel block alone, or (`double`) the compaction too."""
    text_encoder: Literal["frozen", "learned"] = "frozen"
    """Who reads captions: `frozen`, a language model outside the network, whose features batches hold; `learned`, a
    small encoder of bytes inside it, trained along."""
    text_length: PositiveInt = 512
    """Most tokens of a caption (bytes, for the learned encoder)."""
    text_depth: PositiveInt = 2
    """Blocks of the learned text encoder."""
    condition_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of training samples whose text, pooled text included, is replaced by the null condition, so that guidance
    works."""
    norm_eps: Annotated[float, Field(gt=0)] = 1e-6
    """Term that the RMSNorms add to the mean square."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> PixelHDMSpec:
        check_multiple("model.width", self.width, self.num_heads, f"model.num_heads={self.num_heads}")
        reason = f"model.num_kv_heads={self.num_kv_heads}"
        check_multiple("model.num_heads", self.num_heads, self.num_kv_heads, reason)
        self._check_mrope_widths()
        check_mlp_ratio(self.width, self.mlp_ratio)
        check_mlp_ratio(self.pixel_width, self.mlp_ratio, "model.pixel_width")
        check_multiple("model.time_width", self.time_width, 2, "2 (half sines, half cosines)")
        reason = f"model.patch_size={self.patch_size}"
        check_multiple("model.max_resolution", self.max_resolution, self.patch_size, reason)
        return self

    def _check_mrope_widths(self) -> None:
        widths = self.mrope_widths
        if sum(widths) == self.head_width and all(width > 0 and width % 2 == 0 for width in widths):
            return
        if self.head_width < 6 or self.head_width % 2:
            remedy = "make model.width / model.num_heads an even number of at least 6"
        else:
            side = max(2, self.head_width * 3 // 16 * 2)  # the published shares: 16, 24 and 24 of 64
            remedy = f"set model.mrope_widths to {[self.head_width - 2 * side, side, side]}"
        raise ValueError(
            f"model.mrope_widths={list(widths)} are not three positive even numbers that add up to a head's width "
            f"(model.width / model.num_heads = {self.head_width}); {remedy}."
        )

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.width // self.num_heads

    @property
    def mlp_width(self) -> int:
        """Hidden width of the patch path's SwiGLUs."""
        return round(self.width * self.mlp_ratio)

    @property
    def pixel_mlp_width(self) -> int:
        """Hidden width of the pixel path's SwiGLUs."""
        return round(self.pixel_width * self.mlp_ratio)

    @property
    def max_patches(self) -> int:
        """Patches along a side of the largest image."""
        return self.max_resolution // self.patch_size

    @property
    def example_patches(self) -> int:
        """Patches along a side of an example image, of EXAMPLE_SIDE pixels where the network takes images as large."""
        return min(EXAMPLE_SIDE // self.patch_size, self.max_patches) or 1

    def check_size(self, height: int, width: int, knobs: tuple[str, str] = ("height", "width")) -> None:
        """Raise ValueError unless the network takes images of this size; `knobs` are the caller's names of its sides.

        A side is a multiple of the patch size, and `max_resolution` at most.
        """
        for knob, side in zip(knobs, (height, width), strict=True):
            check_multiple(knob, side, self.patch_size, f"model.patch_size={self.patch_size}")
            if not 0 < side <= self.max_resolution:
                raise ValueError(
                    f"{knob}={side} is not between 1 and model.max_resolution={self.max_resolution}; "
                    f"set {knob} to {self.max_resolution} or less, or train with a higher model.max_resolution."
                )

    def check_texts(self, knob: str, texts: Sequence[str]) -> None:
        """Raise ValueError for a text without a character, and for one too long for a learned encoder."""
        for text in texts:
            if not text.strip():
                raise ValueError(f"{knob}={text!r} holds no text; write one, or leave it out.")
            try:
                num_bytes = len(text.encode())
            except UnicodeEncodeError as error:
                raise ValueError(f"{knob}={text!r} is no text in UTF-8; write it anew.") from error
            if self.text_encoder == "learned" and num_bytes > self.text_length:
                raise ValueError(
                    f"{knob}={text[:40] + '...'!r} is {num_bytes} bytes long, more than the model reads "
                    f"(model.text_length={self.text_length}); shorten it."
                )

    def batch_fields(self) -> tuple[BatchField, ...]:
        image = BatchField(
            "image",
            (CHANNELS, ANY, ANY),
            "float32",
            value_range=(-1.0, 1.0),
            unit="pixel intensity",
            multiple_of=self.patch_size,
            at_most=self.max_resolution,
            knobs=FieldKnobs(multiple_of="model.patch_size", at_most="model.max_resolution"),
        )
        return (image, *self._text_fields())

    def _text_fields(self) -> tuple[BatchField, ...]:
        length, shape = self.text_length, ("", "model.width")
        of_length = FieldKnobs(at_most="model.text_length")
        if self.text_encoder == "learned":
            unit = "byte of UTF-8, 0 behind the end"
            return (BatchField("caption", (ANY,), "int64", None, unit, NUM_BYTES, at_most=length, knobs=of_length),)
        features = FieldKnobs(shape, at_most="model.text_length")
        return (
            BatchField(
                "text", (ANY, self.width), "float32", None, "feature of a token", at_most=length, knobs=features
            ),
            BatchField(
                "text_mask", (ANY,), "bool", None, "true for tokens, not padding", at_most=length, knobs=of_length
            ),
            BatchField(
                "text_pooled", (self.width,), "float32", None, "feature of a caption", knobs=FieldKnobs(shape[1:])
            ),
        )
