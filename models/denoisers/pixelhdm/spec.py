"""The PixelHDM family's specs of objective and sampling, beside the network's own. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from denoisers.contract import (
    ANY,
    BatchField,
    ModelSpec,
    ObjectiveSpec,
    PositiveInt,
    SamplingSpec,
    Spec,
    Weight,
)
from denoisers.pixelhdm.model_spec import CHANNELS, PixelHDMSpec
from denoisers.processes.flow.spec import DCT_BLOCK, LogitNormalTime, UniformTime

__all__ = ["PixelHDMObjectiveSpec", "PixelHDMSamplingSpec", "PixelHDMSpec"]

IMAGE_FEATURES = "image_features"
"""Batch field of the image encoder's features."""


class PixelHDMWeights(Spec):
    """One weight per loss component; a component with weight 0 is not computed in training."""

    velocity: Weight = 1.0
    """Weight of the mean squared error of the velocity, per value of a pixel."""
    frequency: Weight = 1.0
    """Weight of the velocity's squared error by frequency, as JPEG weighs frequencies."""
    alignment: Weight = 0.5
    """Weight of 1 - cos(tokens of a patch block, features of an image encoder). Above 0 batches need these features."""

    @model_validator(mode="after")
    def _some_weight(self) -> PixelHDMWeights:
        if not any(getattr(self, name) for name in type(self).model_fields if name != "alignment"):
            raise ValueError(
                "objective.weights.velocity and objective.weights.frequency are both 0, so nothing trains the output; "
                "set objective.weights.velocity to 1."
            )
        return self


class FrequencySpec(Spec):
    """Weighting of frequencies in the frequency loss."""

    quality: Annotated[int, Field(ge=1, le=100)] = 90
    """Quality of the JPEG tables whose inverse weighs frequencies: low qualities care little for detail, at 100 all
    frequencies count alike."""


class PixelHDMLogitNormalTime(LogitNormalTime):
    """t = eps + (1 - 2 eps) sigmoid(mean + std u), u ~ N(0, 1), by default over the times that samples go through."""

    eps: Annotated[float, Field(ge=0, lt=0.5)] = 0.05
    """Smallest distance of t from 0 and from 1."""


class PixelHDMObjectiveSpec(ObjectiveSpec):
    """Velocity regression of z_t = t x + (1 - t) eps, x data and eps noise, with two losses beside it."""

    component_prediction = "velocity"

    weights: PixelHDMWeights = PixelHDMWeights()
    """Weight of each loss component."""
    time: Annotated[UniformTime | PixelHDMLogitNormalTime, Field(discriminator="kind")] = PixelHDMLogitNormalTime()
    """Distribution of training times; t = 0 is noise, t = 1 data. Held-out metrics do not depend on it."""
    prediction: Literal["velocity", "image"] = "velocity"
    """Meaning of the network's output: the velocity x - eps, or the image x, from which the velocity is computed."""
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
                "objective.prediction=image divides by 1 - t, which these objective.time let come near 0; set "
                "objective.time to {kind: logit_normal, eps: 0.05}, or objective.prediction to velocity."
            )
        return self

    def batch_fields(self, model: ModelSpec) -> tuple[BatchField, ...]:
        """The image encoder's features, where they are aligned with: a row a patch, patches row by row."""
        if self.weights.alignment == 0:
            return ()
        return (BatchField(IMAGE_FEATURES, (ANY, self.alignment_width), "float32", unit="feature of a patch"),)

    def assumed_shapes(self, model: ModelSpec, known: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        """Return images of 256 x 256 pixels, or the model's largest, and features of the images' patches."""
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
                f"objective.alignment_block={self.alignment_block} is none of the model.patch_depth={model.patch_depth}"
                f" patch blocks; set objective.alignment_block to 1 to {model.patch_depth}, or "
                "objective.weights.alignment to 0."
            )

    def check_shapes(self, model: ModelSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise ValueError for images that do not divide into the frequency loss's blocks, and for features of other
        patches. Without `image_features` there is nothing to align with."""
        assert isinstance(model, PixelHDMSpec), f"{type(model).__name__} is no PixelHDMSpec"
        height, width = shapes["image"][1:]
        if self.weights.frequency > 0 and (height % DCT_BLOCK or width % DCT_BLOCK):
            raise ValueError(
                f"objective.weights.frequency={self.weights.frequency:g} compares blocks of {DCT_BLOCK} x {DCT_BLOCK} "
                f"pixels, which images of {height} x {width} are no multiple of; set objective.weights.frequency to 0, "
                f"or take images with sides in multiples of {DCT_BLOCK}."
            )
        num_patches = height // model.patch_size * (width // model.patch_size)
        if self.weights.alignment > 0 and IMAGE_FEATURES in shapes and shapes[IMAGE_FEATURES][0] != num_patches:
            raise ValueError(
                f"image_features are of {shapes[IMAGE_FEATURES][0]} patches, and images of {height} x {width} pixels "
                f"have {num_patches} (model.patch_size={model.patch_size}); set model.patch_size to the image "
                "encoder's, or objective.weights.alignment to 0."
            )


class PixelHDMSamplingSpec(SamplingSpec):
    """Integration of the velocity from noise to an image, guided by a prompt."""

    solver: Literal["euler", "heun", "dpmpp_2m", "midpoint", "dpmpp_2s"] = "heun"
    """Network evaluations for N steps: euler and dpmpp_2m N, heun 2 N - 1, midpoint and dpmpp_2s 2 N."""
    steps: PositiveInt = 50
    """Equal steps from t = eps to t = 1 - eps."""
    guidance: Annotated[float, Field(ge=0)] = 7.5
    """Classifier-free guidance scale s: 1 is the conditional prediction, more follows the prompt more closely."""
    rescale: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share phi to which a guided prediction gets the standard deviation of the conditional one (arXiv:2305.08891)."""
    guidance_schedule: Literal["constant", "linear", "cosine", "quadratic"] = "constant"
    """The scale at time t: s, s (1 - t), s (1 + cos(pi t)) / 2, s (1 - t)^2."""
    min_scale: Annotated[float, Field(ge=0)] = 1.0
    """Smallest scale of a schedule; below 1, guidance leads away from the prompt."""
    interval: Annotated[tuple[float, float], Field(strict=False)] = (0.0, 1.0)
    """Times (t_start, t_end) between which guidance is on (arXiv:2404.07724); elsewhere the scale is 1."""
    eps: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Smallest distance of sampling times from 0 and from 1, as in training."""
    final_projection: bool = True
    """Take the last step from t = 1 - eps to t = 1, with one more evaluation."""
    height: PositiveInt = 256
    """Height of an image, in pixels."""
    width: PositiveInt = 256
    """Width of an image, in pixels."""
    prompts: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Descriptions of samples whose request has none, equally many samples for each; without any, captions of held-out
    images."""
    negative_prompt: str | None = None
    """Description that guidance leads away from; null: the null condition."""
    compile: bool = False
    """Compile the network before sampling: slow to begin with, faster after."""

    @field_validator("interval")
    @classmethod
    def _interval_goes_forward(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= value[0] < value[1] <= 1:
            raise ValueError(
                f"sampling.interval={list(value)} is no interval of time (0 <= t_start < t_end <= 1); "
                "set sampling.interval to [0.0, 1.0]."
            )
        return value

    @model_validator(mode="after")
    def _guidance_counts(self) -> PixelHDMSamplingSpec:
        if self.guidance < self.min_scale:
            raise ValueError(
                f"sampling.guidance={self.guidance:g} is below sampling.min_scale={self.min_scale:g}, which would take "
                f"its place; set sampling.min_scale to {self.guidance:g} or less."
            )
        return self

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError for a size that the model does not draw, for a text that is empty or too long, and for
        guidance away from what it never saw."""
        assert isinstance(model, PixelHDMSpec)
        model.check_size(self.height, self.width, ("sampling.height", "sampling.width"))
        model.check_texts("sampling.prompts", self.prompts)
        model.check_texts("sampling.negative_prompt", () if self.negative_prompt is None else (self.negative_prompt,))
        if self.guidance != 1 and model.condition_dropout == 0 and self.negative_prompt is None:
            raise ValueError(
                f"sampling.guidance={self.guidance:g} needs a null condition seen in training "
                "(model.condition_dropout=0); set sampling.guidance to 1, or train with model.condition_dropout=0.1."
            )
