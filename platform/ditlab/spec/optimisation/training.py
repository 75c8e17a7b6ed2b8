"""Length and arithmetic of a run: steps, batch, precision, average, steps that are not finite."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from denoisers.contract import Spec
from ditlab.spec.optimisation.clipping import ClipSpec, NormClip
from ditlab.spec.optimisation.numbers import Count, Fraction

SHORTEST, LONGEST = 0.02, 0.25
"""Relative lengths of averages: below, an average is that of the last few per cent of a run; a constant profile, the
mean of all updates, has 0.289."""
Length = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]


class Ema(Spec):
    """Exponential moving average of the weights in float32; sampling and evaluation use it."""

    decay: Fraction = 0.999
    """In the long run. At step n the decay is min(decay, (1 + n) / (10 + n)): short runs forget their start."""


class Averages(Spec):
    """Averages of the weights from which those of other lengths are rebuilt after the run (`ditlab evaluate --ema`).

    Each is an average of power-function profile (Karras et al. 2024, arXiv:2312.02696) in float32, beside `ema`; none
    changes what is trained, so they may be added to a run that goes on.
    """

    lengths: Annotated[tuple[Length, ...], Field(min_length=1, max_length=4, strict=False)] = (0.05, 0.10)
    """Relative lengths that are kept: the profile's standard deviation as a fraction of the updates so far. Lengths
    from the shortest of these to 0.25 can be rebuilt."""
    snapshots: Annotated[int, Field(ge=4, le=1000)] = 24
    """Snapshots of all lengths are at most this fraction (1 / snapshots) of the run apart, and closer together in its
    beginning: about ten more than this number, kept whatever `checkpoint.keep` says."""

    @field_validator("lengths")
    @classmethod
    def ascending(cls, lengths: tuple[float, ...]) -> tuple[float, ...]:
        """Each length once."""
        if list(lengths) != sorted(set(lengths)):
            shown = ", ".join(f"{length:g}" for length in lengths)
            raise ValueError(
                f"training.averages.lengths=[{shown}] must name each length once, the shortest first; set them to "
                f"[{', '.join(f'{length:g}' for length in sorted(set(lengths)))}]."
            )
        return lengths


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
    averages: Averages | None = None
    """Averages that are kept for rebuilding others after the run; null for none."""

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
