"""The region family's specs. Imports no torch; the defaults are the published network (128,767,003
parameters).

Regions to impute are chosen by chance, or by coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ditlab_models.checks import check_mlp_ratio, check_multiple
from ditlab_models.contract import (
    BatchField,
    FieldOptions,
    InputLaw,
    MetricSettings,
    ModelSpec,
    ObjectiveSpec,
    PositiveFloat,
    PositiveInt,
    SamplingSpec,
    SamplingTimes,
    Share,
    Spec,
    Weight,
)
from ditlab_models.processes.specs import LinearBetas, even_timesteps, quarter_names, timestep_law

MaskRatio = Annotated[float, Field(gt=0, le=1)]
Reduction = Literal["masked_mean", "entry_mean", "zeroed_mean"]


class RandomMask(Spec):
    """A mask of every region with the same chance, independently of the others."""

    kind: Literal["random"] = "random"
    """A mask by chance."""
    ratio: MaskRatio = 0.5
    """Chance of a region to be masked."""


class BedMask(Spec):
    """A mask of the regions that overlap intervals of a BED file; windows without one are
    skipped.
    """

    kind: Literal["bed"] = "bed"
    """A mask by coordinates."""
    path: Annotated[str, Field(min_length=1)]
    """BED file: chromosome, start (from 0), end (exclusive) by line, more columns allowed; plain
    text.
    """


SampledMask = Annotated[RandomMask | BedMask, Field(discriminator="kind")]


def median_of_largest(num_regions: int, ratio: float, num_windows: int) -> int:
    """Return the median of the largest of `num_windows` binomial numbers of masked regions: least
    q, P(X <= q)^num >= 1/2."""
    below = 0.0
    for count in range(num_regions + 1):
        below += comb(num_regions, count) * ratio**count * (1 - ratio) ** (num_regions - count)
        if below**num_windows >= 0.5:
            return count
    return num_regions


class RegionSpec(ModelSpec):
    """A transformer over the regions of a genomic window, modulated by the timestep
    (GETRegionDiffusion).
    """

    family: Literal["region"] = "region"
    """Region diffusion over motif features."""
    num_features: PositiveInt = 283
    """Numbers a region has: its motif scores, and accessibility last."""
    num_regions: PositiveInt = 900
    """Regions of a window, padding included, as the data has them. No parameter depends on it."""
    width: Annotated[int, Field(ge=2)] = 768
    """Numbers a token carries."""
    depth: PositiveInt = 12
    """Transformer blocks."""
    num_heads: PositiveInt = 12
    """Attention heads of a block; each is width / num_heads wide."""
    mlp_ratio: PositiveFloat = 4.0
    """Hidden width of a block's MLP, in multiples of `width`."""
    time_width: Annotated[int, Field(ge=2)] = 256
    """Width of the timestep's sinusoid."""
    corruption: Literal["mask", "ddpm"] = "mask"
    """Replacement of a masked region: `mask`, a learned token (a masked autoencoder; the timestep
    is a random condition without meaning); `ddpm`, its own features under t steps of noise, which
    the network takes away."""
    positions: Literal["none", "sinusoidal"] = "none"
    """Position encoding of tokens. With `none`, as published, all masked regions of a window get
    one and the same prediction under `corruption: mask`; `sinusoidal` adds a fixed table."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> RegionSpec:
        check_multiple(
            "model.width", self.width, self.num_heads, f"model.num_heads={self.num_heads}"
        )
        check_multiple("model.time_width", self.time_width, 2, "2 (half cosines, half sines)")
        if self.positions == "sinusoidal":
            check_multiple(
                "model.width", self.width, 2, "2 (sines and cosines alternate)", 2 * self.num_heads
            )
        check_mlp_ratio(self.width, self.mlp_ratio)
        return self

    @property
    def predicts_one_thing(self) -> bool:
        """True if all masked regions of a window get the same prediction, as nothing distinguishes
        them.
        """
        return self.corruption == "mask" and self.positions == "none"

    @property
    def mlp_width(self) -> int:
        """Hidden width of a block's MLP."""
        return round(self.width * self.mlp_ratio)

    def batch_fields(self) -> tuple[BatchField, ...]:
        window = (self.num_regions, self.num_features)
        names = ("model.num_regions", "model.num_features")
        unit = "share of the feature's maximum"
        return (
            BatchField("regions", window, "float32", None, unit, options=FieldOptions(names)),
            BatchField(
                "present",
                window[:1],
                "bool",
                None,
                "region, not padding",
                options=FieldOptions(names[:1]),
            ),
        )


class RegionWeights(Spec):
    """One weight per loss component; a component with weight 0 is not computed in training."""

    masked: Weight = 1.0
    """Weight of the mean squared error over all features of masked regions."""
    accessibility: Weight = 0.0
    """Weight of the mean squared error over the last feature alone, the accessibility of masked
    regions.
    """

    @model_validator(mode="after")
    def _some_weight(self) -> RegionWeights:
        if not (self.masked or self.accessibility):
            raise ValueError(
                "objective.weights are all 0, so nothing trains; set objective.weights.masked to 1."
            )
        return self


class RegionObjectiveSpec(ObjectiveSpec):
    """Prediction of masked regions from the others."""

    mask_ratio: MaskRatio = 0.5
    """Chance of each region, independently, to be masked in training. Held-out metrics always use
    0.5.
    """
    reduction: Reduction = "masked_mean"
    """Mean of squared errors. `masked_mean`: in each window over the entries of its masked regions,
    then over windows, which count alike. `entry_mean`: over the masked entries of all windows of a
    batch, which count alike: windows with more masked regions count more. `zeroed_mean`: in each
    window over all its entries, those that are not masked counting as zeros, then over windows (the
    published code; the loss is then lower by the masked share). Held-out `masked` is always
    `masked_mean`, held-out `mse` the mean over entries."""
    noise: LinearBetas = LinearBetas()
    """Noise by timestep. Under `corruption: mask` only its number of timesteps plays a part; under
    `ddpm` it must end in noise: alpha_bar at the last timestep is at most 0.05."""
    weights: RegionWeights = RegionWeights()
    """Weight of each loss component."""

    def metric_settings(self, model: ModelSpec) -> MetricSettings:
        """Return the corruption, whose task is another, and the noise of errors that are means over
        its timesteps.

        Predictions in one pass (`mse`, `r2`, `pearson`, `spread`) begin at pure noise, whatever the
        schedule; ratio and reduction are fixed in held-out metrics.
        """
        assert isinstance(model, RegionSpec)
        means: tuple[str, ...] = ()
        if model.corruption == "ddpm":
            means = ("masked", "accessibility", "excess_loss", *quarter_names("masked"))
        return {
            "": {"corruption": model.corruption},
            **dict.fromkeys(means, self.noise.model_dump(mode="json")),
        }

    def input_laws(self, model: ModelSpec) -> tuple[InputLaw, ...]:
        return timestep_law(self.noise.steps)

    def least_losses(self, model: ModelSpec) -> Mapping[str, float]:
        return {"masked": 0.0, "accessibility": 0.0}

    def typical_reads(self, model: ModelSpec, batch_size: int) -> tuple[int, ...]:
        """Return the median of the largest number of masked regions among `batch_size` windows
        without padding.
        """
        assert isinstance(model, RegionSpec)
        return (median_of_largest(model.num_regions, self.mask_ratio, batch_size),)


class RegionSamplingSpec(SamplingSpec):
    """Imputation of masked regions of real windows, given the regions that are not masked."""

    solver: Literal["predict", "ddpm", "ddim"] = "predict"
    """`predict`: the network's expectation, in one pass. `ddpm` (ancestral) and `ddim`: draws, for
    networks trained with `model.corruption: ddpm`."""
    steps: PositiveInt = 50
    """Network evaluations of ddpm and ddim, spread over the timesteps. With few, draws vary too
    little: a standard deviation of 0.3, under a perfect network, comes out as 0.25 (ddpm) and 0.27
    (ddim) at 50 steps, 0.29 at 250 (default noise)."""
    eta: Share = 0.0
    """Noise that ddim adds on its way: 0 none, 1 as much as ddpm."""
    mask: SampledMask = RandomMask()
    """Regions to impute."""

    def evaluation_times(self, model: ModelSpec, objective: ObjectiveSpec) -> SamplingTimes | None:
        assert isinstance(model, RegionSpec) and isinstance(objective, RegionObjectiveSpec)
        if self.solver != "predict":
            return even_timesteps(objective.noise.steps, self.steps)
        first = 0 if model.corruption == "mask" else objective.noise.steps - 1
        return SamplingTimes("t", (first,))

    def check(self, model: ModelSpec, objective: ObjectiveSpec) -> None:
        """Raise ValueError where the model was not trained for the solver, or has fewer timesteps
        than steps.
        """
        assert isinstance(model, RegionSpec) and isinstance(objective, RegionObjectiveSpec)
        if self.solver != "predict" and model.corruption == "mask":
            raise ValueError(
                f"sampling.solver={self.solver} needs a network trained to take noise away "
                "(model.corruption=mask); set sampling.solver to predict, or train with "
                "model.corruption=ddpm."
            )
        most = objective.noise.steps
        if self.solver != "predict" and self.steps > most:
            raise ValueError(
                f"sampling.steps={self.steps} is more than the timesteps there are "
                f"(objective.noise.steps={most}); set sampling.steps to {most} or less."
            )
