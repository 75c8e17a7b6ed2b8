"""The PixelHDM family's specs. Imports no torch; defaults are its base setting (356,705,879
parameters).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from ditlab_models.checks import check_mlp_ratio, check_multiple
from ditlab_models.contract import (
    ANY,
    BatchField,
    FieldOptions,
    InputLaw,
    MetricSettings,
    ModelSpec,
    NonNegativeFloat,
    ObjectiveSpec,
    PositiveFloat,
    PositiveInt,
    SamplingSpec,
    SamplingTimes,
    Shapes,
    Share,
    Spec,
    Weight,
)
from ditlab_models.processes.specs import DCT_BLOCK, LogitNormalTime, UniformTime, time_law


def _constant(t: float) -> float:
    return 1.0


def _linear(t: float) -> float:
    return 1 - t


def _cosine(t: float) -> float:
    return (1 + math.cos(math.pi * t)) / 2


def _quadratic(t: float) -> float:
    return (1 - t) ** 2


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "quadratic": _quadratic,
}
"""Factor of the guidance at time t, noise at 0 and data at 1: 1 at first, 0 at the end."""
CHANNELS = 3
"""Colour channels of an image: red, green, blue."""
EXAMPLE_SIDE = 256
"""Height and width of example images."""
NUM_BYTES = 256
"""Tokens of the learned text encoder: bytes of UTF-8, of which 0 is padding."""
IMAGE_FEATURES = "image_features"
"""Batch field of the image encoder's features."""


class PixelHDMSpec(ModelSpec):
    """Text to image in two paths: a transformer over patches and text for what is shown, and a
    light one over pixels, told by the first, for detail. Images are RGB, of any size up to
    `max_resolution`."""

    family: Literal["pixelhdm"] = "pixelhdm"
    """Dual-path diffusion of images in pixel space."""
    width: Annotated[int, Field(ge=2)] = 1024
    """Numbers a token of the patch path carries: that of the text features (Qwen3-0.6B has
    1024).
    """
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
    mlp_ratio: PositiveFloat = 3.0
    """Hidden width of a SwiGLU, in multiples of `width` in the patch path and of `pixel_width` in
    the pixel path.
    """
    bottleneck_width: PositiveInt = 256
    """Width that a patch is squeezed to before it becomes a token."""
    time_width: Annotated[int, Field(ge=2)] = 256
    """Width of the sinusoid of time."""
    max_resolution: PositiveInt = 1024
    """Largest height and width of an image, in pixels."""
    positions: Literal["mrope", "learned"] = "mrope"
    """Position encoding of tokens: `mrope` turns queries and keys by text position, row and column;
    `learned` adds trained vectors to the tokens."""
    mrope_widths: Annotated[tuple[int, int, int], Field(strict=False)] = (16, 24, 24)
    """Entries of a head that `mrope` turns by text position, by row and by column."""
    rope_base: Annotated[float, Field(gt=1)] = 10000.0
    """Base of the rotations' frequencies: with d entries, pair j turns by base^(-2 j / d) radians a
    position.
    """
    gate: Literal["headwise", "elementwise"] = "headwise"
    """Gate of an attention's output, computed from its input: a number for each head, or for each
    entry.
    """
    adaln_init_gain: float = 1e-4
    """Initial scale gamma of the pixel path's (1 + gamma) norm(x) + beta."""
    pixel_residual: Literal["block", "double"] = "block"
    """Who adds its input to a token compaction: the pixel block alone, or (`double`) the compaction
    too.
    """
    text_encoder: Literal["frozen", "learned"] = "frozen"
    """Who reads captions: `frozen`, a language model outside the network, whose features batches
    hold; `learned`, a small encoder of bytes inside it, trained along."""
    text_length: PositiveInt = 512
    """Most tokens of a caption (bytes, for the learned encoder)."""
    text_depth: PositiveInt = 2
    """Blocks of the learned text encoder."""
    condition_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of training samples whose text, pooled text included, is replaced by the null
    condition, so that guidance works."""
    norm_eps: PositiveFloat = 1e-6
    """Term that the RMSNorms add to the mean square."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> PixelHDMSpec:
        check_multiple(
            "model.width", self.width, self.num_heads, f"model.num_heads={self.num_heads}"
        )
        reason = f"model.num_kv_heads={self.num_kv_heads}"
        check_multiple("model.num_heads", self.num_heads, self.num_kv_heads, reason)
        head = self.head_width
        widths = self.mrope_widths
        if sum(widths) != head or any(width <= 0 or width % 2 for width in widths):
            side = max(2, head * 3 // 16 * 2)  # the published shares: 16, 24 and 24 of 64
            remedy = f"set model.mrope_widths to {[head - 2 * side, side, side]}"
            if head < 6 or head % 2:
                remedy = "make model.width / model.num_heads an even number of at least 6"
            raise ValueError(
                f"model.mrope_widths={list(widths)} are not three positive even numbers that "
                f"add up to a head's width (model.width / model.num_heads = {head}); {remedy}."
            )
        check_mlp_ratio(self.width, self.mlp_ratio)
        check_mlp_ratio(self.pixel_width, self.mlp_ratio, "model.pixel_width")
        check_multiple("model.time_width", self.time_width, 2, "2 (half sines, half cosines)")
        reason = f"model.patch_size={self.patch_size}"
        check_multiple("model.max_resolution", self.max_resolution, self.patch_size, reason)
        return self

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.width // self.num_heads

    @property
    def mlp_width(self) -> int:
        """Hidden width of the patch path's SwiGLUs."""
        return round(self.width * self.mlp_ratio)

    @property
    def max_patches(self) -> int:
        """Patches along a side of the largest image."""
        return self.max_resolution // self.patch_size

    @property
    def example_patches(self) -> int:
        """Patches along a side of an example image, of EXAMPLE_SIDE pixels where the network takes
        images as large.
        """
        return min(EXAMPLE_SIDE // self.patch_size, self.max_patches) or 1

    def check_size(
        self, height: int, width: int, options: tuple[str, str] = ("height", "width")
    ) -> None:
        """Raise ValueError unless the network takes images of this size; `options` are the caller's
        names of its sides."""
        for option, side in zip(options, (height, width), strict=True):
            check_multiple(option, side, self.patch_size, f"model.patch_size={self.patch_size}")
            if not 0 < side <= self.max_resolution:
                raise ValueError(
                    f"{option}={side} is not between 1 and "
                    f"model.max_resolution={self.max_resolution}; set {option} to "
                    f"{self.max_resolution} or less, or train with a higher "
                    "model.max_resolution."
                )

    def check_texts(self, option: str, texts: Sequence[str]) -> None:
        """Raise ValueError for a text without a character, and for one too long for a learned
        encoder.
        """
        for text in texts:
            if not text.strip():
                raise ValueError(f"{option}={text!r} holds no text; write one, or leave it out.")
            try:
                num_bytes = len(text.encode())
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"{option}={text!r} is no text in UTF-8; write it again."
                ) from error
            if self.text_encoder == "learned" and num_bytes > self.text_length:
                shown = f"{text[:40]}..."
                raise ValueError(
                    f"{option}={shown!r} is {num_bytes} bytes long, more than the "
                    f"model reads (model.text_length={self.text_length}); shorten it."
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
            options=FieldOptions(multiple_of="model.patch_size", at_most="model.max_resolution"),
        )
        length = self.text_length
        of_length = FieldOptions(at_most="model.text_length")
        if self.text_encoder == "learned":
            unit = "byte of UTF-8, 0 behind the end"
            caption = BatchField(
                "caption", (ANY,), "int64", None, unit, NUM_BYTES, at_most=length, options=of_length
            )
            return (image, caption)
        token = FieldOptions(("", "model.width"), at_most="model.text_length")
        unit = "feature of a token"
        mask_unit = "true for tokens, not padding"
        pooled = "feature of a caption"
        of_width = FieldOptions(("model.width",))
        return (
            image,
            BatchField(
                "text", (ANY, self.width), "float32", None, unit, at_most=length, options=token
            ),
            BatchField(
                "text_mask", (ANY,), "bool", None, mask_unit, at_most=length, options=of_length
            ),
            BatchField("text_pooled", (self.width,), "float32", None, pooled, options=of_width),
        )


class PixelHDMWeights(Spec):
    """One weight per loss component; a component with weight 0 is not computed in training."""

    velocity: Weight = 1.0
    """Weight of the mean squared error of the velocity, per value of a pixel."""
    frequency: Weight = 1.0
    """Weight of the velocity's squared error by frequency, as JPEG weighs frequencies."""
    alignment: Weight = 0.5
    """Weight of 1 - cos(tokens of a patch block, features of an image encoder). Above 0 batches
    need these features.
    """

    @model_validator(mode="after")
    def _some_weight(self) -> PixelHDMWeights:
        if not any(getattr(self, name) for name in type(self).model_fields if name != "alignment"):
            raise ValueError(
                "objective.weights.velocity and objective.weights.frequency are both 0, so "
                "nothing trains the output; set objective.weights.velocity to 1."
            )
        return self


class FrequencySpec(Spec):
    """Weighting of frequencies in the frequency loss."""

    quality: Annotated[int, Field(ge=1, le=100)] = 90
    """Quality of the JPEG tables whose inverse weighs frequencies: low qualities care little for
    detail, at 100 all frequencies count alike."""


class PixelHDMLogitNormalTime(LogitNormalTime):
    """t = eps + (1 - 2 eps) sigmoid(mean + std u), u ~ N(0, 1), by default over the times that
    samples go through.
    """

    eps: Annotated[float, Field(ge=0, lt=0.5)] = 0.05
    """Smallest distance of t from 0 and from 1."""


class PixelHDMObjectiveSpec(ObjectiveSpec):
    """Velocity regression of z_t = t x + (1 - t) eps, x data and eps noise, with two losses beside
    it.
    """

    component_prediction = "velocity"
    quarters = (
        "t0 to t3: the held-out velocity error by quarter of the times from 0.05 to 0.95, from "
        "t0 (nearly pure noise) to t3 (nearly clean data)."
    )

    weights: PixelHDMWeights = PixelHDMWeights()
    """Weight of each loss component."""
    time: Annotated[UniformTime | PixelHDMLogitNormalTime, Field(discriminator="kind")] = (
        PixelHDMLogitNormalTime()
    )
    """Distribution of training times; t = 0 is noise, t = 1 data. Held-out metrics do not depend on
    it.
    """
    prediction: Literal["velocity", "image"] = "velocity"
    """Meaning of the network's output: the velocity x - eps, or the image x, from which the
    velocity is computed.
    """
    frequency: FrequencySpec = FrequencySpec()
    """The frequency loss."""
    alignment_block: PositiveInt = 8
    """Patch block, counted from 1, whose tokens are aligned with the image encoder's features."""
    alignment_width: PositiveInt = 768
    """Width of the image encoder's features."""
    alignment_until: PositiveInt = 250_000
    """Optimiser steps with the alignment loss; from then on it is off, and its encoder is freed."""

    @model_validator(mode="after")
    def _times_keep_from_data(self) -> PixelHDMObjectiveSpec:
        if self.prediction == "image" and self.time.bounds[1] >= 1:
            raise ValueError(
                "objective.prediction=image divides by 1 - t, which these objective.time let "
                "come near 0; set objective.time to {kind: logit_normal, eps: 0.05}, or "
                "objective.prediction to velocity."
            )
        return self

    def metric_settings(self, model: ModelSpec) -> MetricSettings:
        """Return the settings of the frequency error; held-out times are uniform whatever `time`
        is.
        """
        return {"frequency": self.frequency.model_dump(mode="json")}

    def batch_fields(self, model: ModelSpec) -> tuple[BatchField, ...]:
        """The image encoder's features, where they are aligned with: a row a patch, patches row by
        row.
        """
        if self.weights.alignment == 0:
            return ()
        return (
            BatchField(
                IMAGE_FEATURES, (ANY, self.alignment_width), "float32", unit="feature of a patch"
            ),
        )

    def input_laws(self, model: ModelSpec) -> tuple[InputLaw, ...]:
        return time_law(self.time)

    def least_losses(self, model: ModelSpec) -> Mapping[str, float]:
        return {"velocity": 0.0, "frequency": 0.0, "alignment": 0.0}

    def assumed_shapes(self, model: ModelSpec, known: Shapes) -> Shapes:
        """Return images of 256 x 256 pixels, or the model's largest, and features of the images'
        patches.
        """
        assert isinstance(model, PixelHDMSpec), f"{type(model).__name__} is no PixelHDMSpec"
        side = model.example_patches * model.patch_size
        image = known.get("image", (CHANNELS, side, side))
        num_patches = (image[1] // model.patch_size) * (image[2] // model.patch_size)
        return {"image": image, IMAGE_FEATURES: (num_patches, self.alignment_width)}

    def check(self, model: ModelSpec) -> None:
        """Raise ValueError where the model has no such block to align."""
        assert isinstance(model, PixelHDMSpec), f"{type(model).__name__} is no PixelHDMSpec"
        if self.weights.alignment > 0 and self.alignment_block > model.patch_depth:
            raise ValueError(
                f"objective.alignment_block={self.alignment_block} is none of the "
                f"model.patch_depth={model.patch_depth} patch blocks; set "
                f"objective.alignment_block to 1 to {model.patch_depth}, or "
                "objective.weights.alignment to 0."
            )

    def check_shapes(self, model: ModelSpec, shapes: Shapes) -> None:
        """Raise ValueError for images that do not divide into the frequency loss's blocks, and for
        features of other patches. Without `image_features` there is nothing to align with."""
        assert isinstance(model, PixelHDMSpec), f"{type(model).__name__} is no PixelHDMSpec"
        height, width = shapes["image"][1:]
        if self.weights.frequency > 0 and (height % DCT_BLOCK or width % DCT_BLOCK):
            raise ValueError(
                f"objective.weights.frequency={self.weights.frequency:g} compares blocks of "
                f"{DCT_BLOCK} x {DCT_BLOCK} pixels, which images of {height} x {width} are no "
                "multiple of; set objective.weights.frequency to 0, or take images with sides "
                f"in multiples of {DCT_BLOCK}."
            )
        num_patches = height // model.patch_size * (width // model.patch_size)
        if (
            self.weights.alignment > 0
            and IMAGE_FEATURES in shapes
            and shapes[IMAGE_FEATURES][0] != num_patches
        ):
            raise ValueError(
                f"image_features are of {shapes[IMAGE_FEATURES][0]} patches, and images of "
                f"{height} x {width} pixels have {num_patches} "
                f"(model.patch_size={model.patch_size}); set model.patch_size to the image "
                "encoder's, or objective.weights.alignment to 0."
            )


class PixelHDMSamplingSpec(SamplingSpec):
    """Integration of the velocity from noise to an image, guided by a prompt."""

    takes_solvers: ClassVar = True
    solver: Literal["euler", "heun", "dpmpp_2m", "midpoint", "dpmpp_2s"] = "heun"
    """Network evaluations for N steps: euler and dpmpp_2m N, heun 2 N - 1, midpoint and dpmpp_2s 2
    N.
    """
    steps: PositiveInt = 50
    """Equal steps from t = eps to t = 1 - eps."""
    guidance: NonNegativeFloat = 7.5
    """Classifier-free guidance scale s: 1 is the conditional prediction, more follows the prompt
    more closely.
    """
    rescale: Share = 0.0
    """Share phi to which a guided prediction gets the standard deviation of the conditional one
    (arXiv:2305.08891).
    """
    guidance_schedule: Literal["constant", "linear", "cosine", "quadratic"] = "constant"
    """The scale at time t: s, s (1 - t), s (1 + cos(pi t)) / 2, s (1 - t)^2."""
    min_scale: NonNegativeFloat = 1.0
    """Smallest scale of a schedule; below 1, guidance leads away from the prompt."""
    interval: Annotated[tuple[float, float], Field(strict=False)] = (0.0, 1.0)
    """Times (t_start, t_end) between which guidance is on (arXiv:2404.07724); elsewhere the scale
    is 1.
    """
    eps: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Smallest distance of sampling times from 0 and from 1, as in training."""
    final_projection: bool = True
    """Take the last step from t = 1 - eps to t = 1, with one more evaluation."""
    height: PositiveInt = 256
    """Height of an image, in pixels."""
    width: PositiveInt = 256
    """Width of an image, in pixels."""
    prompts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Descriptions of samples whose request has none, equally many samples for each; without any,
    captions of held-out images."""
    negative_prompt: str | None = None
    """Description that guidance leads away from; null: the null condition."""
    compile: bool = False
    """Compile the network before sampling: slow to begin with, faster after."""

    @field_validator("interval")
    @classmethod
    def _interval_goes_forward(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= value[0] < value[1] <= 1:
            raise ValueError(
                f"sampling.interval={list(value)} is no interval of time (0 <= t_start < t_end "
                "<= 1); set sampling.interval to [0.0, 1.0]."
            )
        return value

    @model_validator(mode="after")
    def _guidance_counts(self) -> PixelHDMSamplingSpec:
        if self.guidance < self.min_scale:
            raise ValueError(
                f"sampling.guidance={self.guidance:g} is below "
                f"sampling.min_scale={self.min_scale:g}, which would take its place; set "
                f"sampling.min_scale to {self.guidance:g} or less."
            )
        return self

    @property
    def is_plain(self) -> bool:
        """True if the scale of guidance is 1 at all times."""
        return self.guidance == 1 and (self.guidance_schedule == "constant" or self.min_scale == 1)

    def scale_at(self, t: float) -> float:
        """Scale of guidance at time t, 1 outside t_start < t < t_end (Kynkaanniemi et al. 2024,
        arXiv:2404.07724).
        """
        t_start, t_end = self.interval
        if not t_start < t < t_end:
            return 1.0
        return max(self.guidance * SCHEDULES[self.guidance_schedule](t), self.min_scale)

    def evaluation_times(self, model: ModelSpec, objective: ObjectiveSpec) -> SamplingTimes | None:
        assert isinstance(objective, PixelHDMObjectiveSpec)
        if self.solver in self.added_solvers:
            return None
        span = 1 - 2 * self.eps
        grid = [self.eps + span * number / self.steps for number in range(self.steps + 1)]
        values: list[float] = []
        for first, last in pairwise(grid):
            values.append(first)
            if self.solver == "midpoint":
                values.append((first + last) / 2)
            if self.solver == "dpmpp_2s":
                odds = math.sqrt(first / (1 - first) * last / (1 - last))
                values.append(odds / (1 + odds))
            if self.solver == "heun" and last != grid[-1]:
                values.append(last)
        shift = span
        if self.final_projection:
            values.append(1 - self.eps)
            shift += self.eps
        is_plain = objective.prediction == "velocity" and self.rescale == 0
        return SamplingTimes("t", tuple(values), shift=shift if is_plain else None)

    def guided_by(self, scale: float, model: ModelSpec) -> PixelHDMSamplingSpec | None:
        assert isinstance(model, PixelHDMSpec)
        if model.condition_dropout == 0:
            return None
        return self.model_copy(
            update={
                "guidance": scale,
                "guidance_schedule": "constant",
                "min_scale": 0.0,
                "interval": (-1.0, 2.0),
                "rescale": 0.0,
                "negative_prompt": None,
            }
        )

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError for a size that the model does not draw, for a text that is empty or too
        long, and for guidance away from what it never saw."""
        assert isinstance(model, PixelHDMSpec)
        model.check_size(self.height, self.width, ("sampling.height", "sampling.width"))
        model.check_texts("sampling.prompts", self.prompts)
        if self.negative_prompt is not None:
            model.check_texts("sampling.negative_prompt", (self.negative_prompt,))
        if self.guidance != 1 and model.condition_dropout == 0 and self.negative_prompt is None:
            raise ValueError(
                f"sampling.guidance={self.guidance:g} needs a null condition seen in training "
                "(model.condition_dropout=0); set sampling.guidance to 1, or train with "
                "model.condition_dropout=0.1."
            )
