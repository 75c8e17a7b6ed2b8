"""How weights move: optimiser, learning-rate schedule, clipping, average, step budget."""

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


class ConstantSchedule(Spec):
    """The optimiser's learning rate, all the way."""

    kind: Literal["constant"] = "constant"
    """No change over time."""
    warmup: Warmup = 0
    """Steps of linear rise from 0."""


class WarmupCosineSchedule(Spec):
    """Linear warm-up, then half a cosine down to `final` times the learning rate at the last step."""

    kind: Literal["warmup_cosine"] = "warmup_cosine"
    """Linear rise, cosine fall."""
    warmup: Warmup = 0
    """Steps of linear rise from 0."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Where the cosine ends, as a share of the learning rate."""


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
    """By global L2 norm."""
    max_norm: Positive = 1.0
    """Norm above which gradients are scaled down to it."""


class ZClip(Spec):
    """Adaptive clipping by gradient-norm statistics (arXiv:2504.02507)."""

    kind: Literal["zclip"] = "zclip"
    """Not available yet: refused."""

    @model_validator(mode="after")
    def refuse(self) -> "ZClip":
        """Always: named here so that the message can say so."""
        raise ValueError("training.clip.kind=zclip is not available yet; set training.clip.kind to norm or none.")


ClipSpec = Annotated[NoClip | NormClip | ZClip, Field(discriminator="kind")]


class Ema(Spec):
    """Exponential moving average of the weights in float32; sampling and evaluation use it."""

    decay: Fraction = 0.999
    """In the long run. At step n the decay is min(decay, (1 + n) / (10 + n)): short runs forget their start."""


class Training(Spec):
    """Length and arithmetic of a run."""

    steps: Count | None = None
    """Optimiser steps. Give this or `epochs`."""
    epochs: Count | None = None
    """Passes over the training samples, each without its last partial batch. Give this or `steps`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward passes; master weights, moments and the average are float32 always."""
    clip: ClipSpec = NormClip()
    """What to do about large gradients."""
    ema: Ema | None = Ema()
    """Moving average of the weights; null for none."""

    @model_validator(mode="after")
    def one_length(self) -> "Training":
        """Steps or epochs, not both."""
        if self.steps is None and self.epochs is None:
            raise ValueError("training.steps and training.epochs are both null; give one of them.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"training.steps={self.steps} and training.epochs={self.epochs} exclude each other; "
                "remove one, or set it to null."
            )
        return self


class Batch(Spec):
    """Samples of one optimiser step."""

    size: Count = 128
    """Global batch: samples of one optimiser step over all workers."""
    micro: Count | None = None
    """Samples of one forward pass on one worker; the rest is accumulation. Random draws are made by micro-batch. Null:
    size / workers, with draws made for the whole batch, so that the number of workers changes none."""
