"""Optimisation: optimiser, learning-rate schedule, clipping, average, step budget."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from denoisers.contract import Spec

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Warmup = Annotated[int, Field(ge=0, le=10**12)]


class AdamW(Spec):
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    kind: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay."""
    lr: Positive = 1e-4
    """Learning rate; the schedule multiplies it."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled decay per unit of learning rate, on every parameter."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""


class _Rising(Spec):
    """Base of the schedules that begin with a warm-up."""

    warmup: Warmup = 0
    """Steps of linear rise from 0."""
    warmup_epochs: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    """The same in passes over the training data, instead of `warmup`."""

    @model_validator(mode="after")
    def _one_length(self) -> "_Rising":
        if self.warmup and self.warmup_epochs:
            raise ValueError(
                f"schedule.warmup={self.warmup} and schedule.warmup_epochs={self.warmup_epochs:g} are two lengths of "
                "one warm-up; set one of them to 0."
            )
        return self

    def warmup_steps(self, epoch_steps: int) -> int:
        """Steps of the warm-up where an epoch has so many."""
        return round(self.warmup_epochs * epoch_steps) if self.warmup_epochs else self.warmup


class ConstantSchedule(_Rising):
    """The optimiser's learning rate, all the way."""

    kind: Literal["constant"] = "constant"
    """No change over time."""


class WarmupCosineSchedule(_Rising):
    """Linear warm-up, then half a cosine down to `final` times the learning rate at the last step."""

    kind: Literal["warmup_cosine"] = "warmup_cosine"
    """Linear rise, cosine fall."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Value at the end of the cosine, as a share of the learning rate."""


class SteppedCosineRestartSchedule(Spec):
    """Cosine from peak to valley in every cycle; peak and valley shrink from cycle to cycle, down to a floor."""

    kind: Literal["stepped_cosine_restart"] = "stepped_cosine_restart"
    """Restarting cosine whose peak and valley decay."""
    cycle: Count | None = None
    """Steps of a cycle; null is one epoch."""
    valley: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The first cycle's lowest point, as a share of the learning rate."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Factor on peak and valley from one cycle to the next."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Lower bound of peak and valley, as a share of the learning rate."""


ScheduleSpec = Annotated[
    ConstantSchedule | WarmupCosineSchedule | SteppedCosineRestartSchedule, Field(discriminator="kind")
]


class NoClip(Spec):
    """Gradients as they are."""

    kind: Literal["none"] = "none"
    """No clipping."""


class NormClip(Spec):
    """Clip the global gradient norm (Pascanu et al. 2013, arXiv:1211.5063)."""

    kind: Literal["norm"] = "norm"
    """Clipping by global L2 norm."""
    max_norm: Positive = 1.0
    """Norm above which gradients are scaled down to it."""


class ZClip(Spec):
    """Adaptive clipping by the z-score of the gradient norm (Kumar et al. 2025, arXiv:2504.02507).

    A norm more than `z` standard deviations above the moving mean is clipped to mean + z^2 / its own z-score standard
    deviations; the clipped norm enters mean and variance. Costs a wait for the GPU in every step.
    """

    kind: Literal["zclip"] = "zclip"
    """Clipping by z-score, as published."""
    z: Positive = 2.5
    """Standard deviations above the mean from which a norm counts as a spike."""
    decay: Fraction = 0.97
    """Decay of the moving mean and variance (the paper's alpha)."""
    warmup: Annotated[int, Field(ge=1, le=10**6)] = 25
    """Steps whose norms give the first mean and variance; only `max_norm` clips them."""
    max_norm: Positive | None = 1.0
    """Upper bound, always in force; null for none."""


class RatioZClip(Spec):
    """Adaptive clipping at a multiple of the gradient norm's moving average.

    The average takes the clipped norm after the limit is set; the first norm starts it and is not clipped. Costs a wait
    for the GPU in every step.
    """

    kind: Literal["zclip_ratio"] = "zclip_ratio"
    """Clipping by ratio to the moving average."""
    ratio: Annotated[float, Field(ge=1)] = 2.5
    """Limit, as a multiple of the average."""
    decay: Fraction = 0.99
    """Decay of the moving average."""


AdaptiveClip = ZClip | RatioZClip
ClipSpec = Annotated[NoClip | NormClip | ZClip | RatioZClip, Field(discriminator="kind")]


class Ema(Spec):
    """Exponential moving average of the weights in float32; sampling and evaluation use it."""

    decay: Fraction = 0.999
    """In the long run. At step n the decay is min(decay, (1 + n) / (10 + n)): short runs forget their start."""


class NonFinite(Spec):
    """Treatment of a step whose loss or gradient is NaN or infinite. Its update never reaches the weights."""

    policy: Literal["skip", "rollback", "stop"] = "skip"
    """`skip` leaves the step's update out and goes on; `rollback` returns to the last checkpoint and leaves the step
    out when it comes by again, for states that were damaged before it showed; `stop` ends the run."""
    limit: Count = 10
    """Such steps in a row, or roll-backs in a row to one checkpoint, after which the run has diverged and ends."""


class Training(Spec):
    """Length and arithmetic of a run."""

    steps: Count | None = None
    """Optimiser steps. Give this or `epochs`."""
    epochs: Count | None = None
    """Passes over the training samples, each without its last partial batch. Give this or `steps`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward passes; master weights, moments and the average are float32 always."""
    clip: ClipSpec = NormClip()
    """Clipping of large gradients."""
    non_finite: NonFinite = NonFinite()
    """Steps with a NaN or infinite loss or gradient. With fp16 the loss scale sees to its own overflows first."""
    ema: Ema | None = Ema()
    """Moving average of the weights; null for none."""

    @model_validator(mode="after")
    def one_length(self) -> "Training":
        """Steps or epochs, not both."""
        if self.steps is None and self.epochs is None:
            raise ValueError("training.steps and training.epochs are both null; give one of them.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"training.steps={self.steps} and training.epochs={self.epochs} exclude each other; remove one: set "
                "training.epochs to null for a run of so many steps, or training.steps to null."
            )
        return self


class Batch(Spec):
    """Samples of one optimiser step."""

    size: Count = 128
    """Global batch: samples of one optimiser step over all workers."""
    micro: Count | None = None
    """Samples of one forward pass on one worker; the rest is accumulation. Random draws are made by micro-batch. Null:
    size / workers, with draws made for the whole batch, so that the number of workers changes none."""
