"""Settings of an ejected training: what its file says at the top, read from an experiment and its
data.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from ditlab.spec.optimization import ClipSpec, RoleFactors, Schedule

StoredField = tuple[str, str, float | None, float]
"""Column of the store, the dtype that the model takes it in, and the ratio and offset of a linear
map onto the model's range; the ratio is None for a column that is only cast.
"""


class UpdateSettings(BaseModel):
    """Settings of the update."""

    model_config = ConfigDict(frozen=True)

    kind: Literal["adamw", "muon"]
    """Optimiser."""
    lr: float
    """Learning rate; the schedule multiplies it."""
    adamw_lr: float
    """Learning rate of what Muon does not orthogonalise."""
    weight_decay: float
    """Decoupled decay per unit of learning rate."""
    no_decay: tuple[str, ...]
    """Roles of the parameters without weight decay."""
    lr_factors: tuple[tuple[str, float], ...]
    """Factors on the learning rate by role of a parameter."""
    lr_patterns: tuple[tuple[str, float], ...]
    """Factors on the learning rate by patterns of names."""
    betas: tuple[float, float]
    """Decay rates of AdamW's first and second moment."""
    eps: float
    """Added to the root of AdamW's second moment."""
    momentum: float = 0.0
    """Decay rate of Muon's momentum."""
    nesterov: bool = False
    """True where Muon orthogonalises gradient + `momentum` times the momentum."""
    scale: Literal["rms", "spectral"] = "rms"
    """Factor on an orthogonalised matrix: as large as AdamW's updates, or as published."""

    @property
    def is_uniform(self) -> bool:
        """True where all parameters are updated alike."""
        is_plain = not self.no_decay and not self.lr_factors and not self.lr_patterns
        return self.kind == "adamw" and is_plain


def update_settings(optimizer: Any) -> UpdateSettings:
    """Return the settings of an `AdamW` or a `Muon`."""
    given = optimizer.model_dump()
    given["adamw_lr"] = given.get("adamw_lr") or optimizer.lr
    plain = RoleFactors().model_dump()
    given["lr_factors"] = tuple(
        item for item in given["lr_factors"].items() if item not in plain.items()
    )
    given["lr_patterns"] = tuple(given["lr_patterns"].items())
    return UpdateSettings(**given)


class Settings(BaseModel):
    """Settings of the training."""

    model_config = ConfigDict(frozen=True)

    seed: int
    """Seed of weights, order and draws."""
    steps: int
    """Optimiser steps."""
    batch_size: int
    """Samples of one optimiser step over all workers."""
    pass_size: int
    """Samples of one forward pass; 0: the batch over the workers."""
    drawn_at_once: int
    """Samples whose random numbers are drawn together, whatever the passes: a multiple of their
    size.
    """
    fields: tuple[StoredField, ...]
    """Column, dtype in the model, and ratio and offset of a linear map; a ratio of None only
    casts.
    """
    split: Literal["rows", "groups", "runs", "classes", "none"]
    """Rows that are held out: single ones, groups or runs of neighbours, or classes."""
    held_out_share: float
    """Share of the rows that is held out."""
    held_out_group: int
    """Neighbouring rows that are held out together."""
    held_out_runs: int
    """Runs of neighbours, some of which are held out."""
    held_out_classes: tuple[tuple[str, tuple[int, ...]], ...]
    """Column of class indices, and the classes of it that are held out."""
    update: UpdateSettings
    """Rule of the update."""
    schedule: Schedule
    """Learning rate over time."""
    clip: ClipSpec
    """Clipping of large gradients."""
    precision: Literal["fp32", "bf16"]
    """Arithmetic of forward and backward passes."""
    ema: float | None
    """Decay of the exponential average of the weights, in the long run."""
    lengths: tuple[float, ...]
    """Relative lengths of averages of power-function profile."""
    flip: float
    """Probability that an image is mirrored in training."""
    one_caption: bool
    """True where one of several captions is drawn."""
    cuts_captions: bool
    """True where captions are cut to the longest of a batch."""
    has_buffers: bool
    """True where modules have buffers that belong to the state."""
    has_objective_weights: bool
    """True where the loss has modules of its own."""
    prepares: bool
    """True where the loss prepares a part of its batch on the host."""
    counted: tuple[str, ...]
    """Numbers by which the loss divides, which are counted over the whole batch."""
    retires: bool
    """True where the loss stops to read fields in the course of training."""
    takes_rows: Literal["none", "conditions", "completed"]
    """Rows that the sampler needs."""
    log_every: int
    """Steps between two lines of the log."""
    evaluate_every: int
    """Steps between two evaluations, beside the last."""
    evaluated: int | None
    """Held-out samples of an evaluation; None: all."""
    save_every: int
    """Steps between two checkpoints, beside the last."""
    samples: int
    """Samples that are drawn at the end."""
    classes: tuple[int, ...]
    """Classes that the data hold, where they do not hold all; those of the samples in turn."""
    shows: Literal["images", "text", "numbers"]
    """Form of samples for a person."""
