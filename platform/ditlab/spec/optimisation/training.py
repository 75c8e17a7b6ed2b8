"""Length and arithmetic of a run: steps, batch, precision, average, steps that are not finite."""

from typing import Literal

from pydantic import model_validator

from denoisers.contract import Spec
from ditlab.spec.optimisation.clipping import ClipSpec, NormClip
from ditlab.spec.optimisation.numbers import Count, Fraction


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
