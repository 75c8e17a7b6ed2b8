"""Optimisation of a run: optimiser, learning-rate schedule, clipping, average, length and batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from ditlab.spec.values import Nonempty
from ditlab_models.contract import NonNegativeFloat, PositiveFloat, Role, Share, Spec
from ditlab_models.extensions import with_kinds
from ditlab_models.finetuning import LoRA, Pattern, matches

if TYPE_CHECKING:
    from ditlab_models.parameters import ParameterRole

Positive = PositiveFloat
Fraction = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Warmup = Annotated[int, Field(ge=0, le=10**12)]


GATHERED_VALUES = 2**25
"""Values of the matrices that a worker gathers at once to update them whole, 128 MiB; a larger one
comes alone.
"""
SHORTEST = 0.02
LONGEST = 0.25
"""Relative lengths of averages: below, an average is that of the last few per cent of a run; a
constant profile, the mean of all updates, has 0.289."""
Length = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]


class RoleFactors(Spec):
    """A factor for each role of a parameter."""

    matrix: Positive = 1.0
    """Weights of linear maps from features to features."""
    convolution: Positive = 1.0
    """Kernels of convolutions."""
    input: Positive = 1.0
    """Weights that read data."""
    head: Positive = 1.0
    """Weights that write predictions."""
    embedding: Positive = 1.0
    """Tables and learned tokens."""
    norm: Positive = 1.0
    """Weights and biases of norms."""
    bias: Positive = 1.0
    """Other biases."""
    scalar: Positive = 1.0
    """Single numbers, such as a temperature."""


LATER: dict[str, Any] = {
    "no_decay": [],
    "lr_factors": RoleFactors().model_dump(),
    "lr_patterns": {},
}
"""Fields that came after the first runs, with the value under which a run is what it was without
them.
"""
LATER_TRAINING_FIELDS: dict[str, Any] = {"freeze": None, "lora": None}
"""Fields of `training` that came later, with the value under which a run is what it was without
them.
"""


@dataclass(frozen=True)
class GroupRates:
    """How the parameters of one group of an optimiser are updated."""

    lr_factor: float
    """Factor on a step's learning rate."""
    weight_decay: float
    moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    """Names of a parameter's tensors of optimiser state, each as large as it, in float32."""


class _ByRole(Spec):
    """Base of the optimisers: weight decay and learning rate by role of a parameter."""

    averages_weights: ClassVar[bool] = False
    """True for an optimiser whose update keeps the weights that are evaluated, in the place of
    `training.ema`.
    """
    takes_offload: ClassVar[bool] = True
    """False for an optimiser whose `check` refuses state off the workers' devices
    (`engine.zero.offload`).
    """
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled decay per unit of learning rate, on every parameter but those of `no_decay`."""
    no_decay: tuple[Role, ...] = Field(default=(), strict=False)
    """Roles of the parameters without weight decay, such as [norm, bias, embedding]; `lr_factors`
    lists them.
    """
    lr_factors: RoleFactors = RoleFactors()
    """Factors on the learning rate by role of a parameter."""
    lr_patterns: dict[Pattern, Positive] = Field(default_factory=dict)
    """Factors on the learning rate by patterns of names, beside those by role: {"head.*": 10.0}. A
    parameter that several match gets the product."""

    @field_validator("no_decay")
    @classmethod
    def _each_once(cls, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        if len(set(roles)) < len(roles):
            raise ValueError(
                f"optimizer.no_decay={list(roles)} names a role twice; name each once."
            )
        return roles

    def rates(self, role: Role, name: str = "") -> GroupRates:
        """Return how a parameter of a role is updated, by its name too
        (`finetuning.parameter_label`); those of equal rates form a group."""
        decay = 0.0 if role in self.no_decay else self.weight_decay
        factor = float(getattr(self.lr_factors, role))
        for pattern, more in self.lr_patterns.items():
            factor *= more if matches(pattern, name) else 1.0
        return GroupRates(factor, decay)

    def update_flops(self, shape: tuple[int, ...], role: ParameterRole) -> int:
        """Return the floating-point operations of a parameter's update beside those number by
        number, which are not counted."""
        return 0

    def check(self, experiment: Any) -> None:
        """Raise ValueError where it does not fit the rest of an experiment."""


class AdamW(_ByRole):
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101)."""

    kind: Literal["adamw"] = "adamw"
    """Adam with decoupled weight decay."""
    lr: Positive = 1e-4
    """Learning rate; the schedule multiplies it."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""


class Optimizer(_ByRole):
    """Optimiser of an add-on. Subclasses add `kind: Literal[NAME] = NAME`.

    It is named by `ditlab.parts.Parts.optimizers`. Workers hold slices of parameters: `update`
    takes each number by itself, and an optimiser that needs whole matrices gives one of its own in
    `build`.
    """

    kind: str
    moments: ClassVar[tuple[str, ...]] = ()
    """Names, which begin with `moment`, of a parameter's tensors of optimiser state, each as large
    as it, in float32; they hold zeros before the first step."""
    lr: Positive = 1e-3
    """Learning rate; the schedule multiplies it."""

    def update(
        self, weights: Any, gradient: Any, state: Mapping[str, Any], step: int, lr: float
    ) -> None:
        """Update a slice of the float32 weights, and the slice of each of `moments` in `state`, in
        place.

        All are tensors (n,). `step` counts updates from 1; weight decay is applied already. Where
        it `averages_weights`, `state["average"]` are the weights that are evaluated, which begin as
        the weights.
        """
        raise NotImplementedError

    def build(self, groups: list[dict[str, Any]]) -> Any:
        """Return the `ditlab.engine.optimizers.EagerOptimizer` of groups; None: one that calls
        `decay` and `update`.

        A group is one of torch, with `moments` beside `lr` and `weight_decay`. Torch is imported
        here alone. The engine makes the state, `step` and the moments, sets `grad_scale` and
        `found_inf` before each step, and calls `bind` once. Such an optimiser must not average
        weights.
        """
        return None

    def decay(self, weights: Any, state: Mapping[str, Any], step: int, share: float) -> None:
        """Apply the decay of a step, `share` of the weights, before `update`, in place."""
        weights.mul_(1 - share)

    def check(self, experiment: Any) -> None:
        """Refuse a second average of the weights beside the optimiser's own."""
        training = experiment.training
        if self.averages_weights and (training.ema or training.averages):
            raise ValueError(
                f"optimizer.kind={self.kind} keeps an average of the weights itself, which is "
                "evaluated and exported; set training.ema and training.averages to null."
            )

    def rates(self, role: Role, name: str = "") -> GroupRates:
        """Return how a parameter of a role is updated."""
        return replace(super().rates(role, name), moments=self.moments)


def _with_default_kind(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {"kind": "adamw", **value}
    return value


def optimizers_with(added: tuple[type[Optimizer], ...]) -> Any:
    """Return the annotation of an optimiser of DiTLab or one of `added`."""
    return Annotated[with_kinds(OptimizerSpec, added), BeforeValidator(_with_default_kind)]


OptimizerSpec = Annotated[AdamW, BeforeValidator(_with_default_kind)]
"""An optimiser; fields without a `kind` are AdamW's."""


class Schedule(Spec):
    """Learning rate over time. Subclasses add `kind: Literal[NAME] = NAME`.

    One of another package is named by `ditlab.parts.Parts.schedules`.
    """

    def factor(self, step: int, total: int, epoch_steps: int) -> float:
        """Return the share of the optimiser's learning rate that step `step` (from 0) of `total`
        has; an epoch has `epoch_steps` steps."""
        raise NotImplementedError

    def check_length(self, total: int, epoch_steps: int) -> None:
        """Raise ValueError, with a whole sentence, where it does not fit into a run of `total`
        steps.
        """


class RisingSchedule(Schedule):
    """Base of the schedules that begin with a warm-up."""

    warmup: Warmup = 0
    """Steps of linear rise from 0."""
    warmup_epochs: Annotated[float, Field(ge=0, le=10**6)] = 0.0
    """The same in passes over the training data, instead of `warmup`."""

    @model_validator(mode="after")
    def _one_length(self) -> RisingSchedule:
        if self.warmup and self.warmup_epochs:
            raise ValueError(
                f"schedule.warmup={self.warmup} and "
                f"schedule.warmup_epochs={self.warmup_epochs:g} are two lengths of one "
                "warm-up; set one of them to 0."
            )
        return self

    def warmup_steps(self, epoch_steps: int) -> int:
        """Steps of the warm-up where an epoch has so many."""
        if self.warmup_epochs:
            return round(self.warmup_epochs * epoch_steps)
        return self.warmup

    def factor(self, step: int, total: int, epoch_steps: int) -> float:
        """Rise from 1/length at step 0; then go on as `after_warmup` says."""
        length = self.warmup_steps(epoch_steps)
        if step < length:
            return min(1.0, (step + 1) / length)
        return self.after_warmup(step, total, length)

    def after_warmup(self, step: int, total: int, length: int) -> float:
        """Return the share of the learning rate that a step after the warm-up's `length` has."""
        raise NotImplementedError

    def check_length(self, total: int, epoch_steps: int) -> None:
        """Raise ValueError for a warm-up that is as long as the run."""
        length = self.warmup_steps(epoch_steps)
        if length and length >= total:
            name = "warmup"
            value = f"{length}"
            less = f"{total // 10}"
            if self.warmup_epochs:
                name = "warmup_epochs"
                value = f"{self.warmup_epochs:g}"
                less = f"{total / epoch_steps / 10:.1g}"
            raise ValueError(
                f"schedule.{name}={value} leaves nothing of the run's {total} steps; set "
                f"schedule.{name} to {less}, or to 0."
            )


class ConstantSchedule(RisingSchedule):
    """The optimiser's learning rate, all the way."""

    kind: Literal["constant"] = "constant"
    """No change over time."""

    def after_warmup(self, step: int, total: int, length: int) -> float:
        """Stay at the optimiser's learning rate."""
        return 1.0


class WarmupCosineSchedule(RisingSchedule):
    """Linear warm-up, then half a cosine down to `final` times the learning rate at the last
    step.
    """

    kind: Literal["warmup_cosine"] = "warmup_cosine"
    """Linear rise, cosine fall."""
    final: Share = 0.0
    """Value at the end of the cosine, as a share of the learning rate."""

    def after_warmup(self, step: int, total: int, length: int) -> float:
        """Fall along half a cosine, which reaches `final` at the last step."""
        progress = (step - length) / max(1, total - 1 - length)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


class WarmupStableDecaySchedule(RisingSchedule):
    """Linear warm-up, the learning rate itself, then a fall at the run's end that begins where one
    says.

    No rate before `decay_start` depends on the run's length (MiniCPM, Hu et al. 2024,
    arXiv:2404.06395; Haegele et al. 2024, arXiv:2405.18392): a run without a decay goes on for as
    long as one likes, and a resume ends it by a decay.
    """

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    """Linear rise, constant rate, fall at the end."""
    decay_start: Warmup | None = None
    """Step after which the rate falls, down to `final` at the run's last step; null: it does not
    fall. A resume may set or change it."""
    shape: Literal["sqrt", "linear"] = "sqrt"
    """Fall by 1 - sqrt(share of the decay that is done), the best of Haegele et al., or by a
    straight line.
    """
    final: Share = 0.0
    """Value at the end of the decay, as a share of the learning rate."""

    def after_warmup(self, step: int, total: int, length: int) -> float:
        """Stay, then fall (Haegele et al. 2024, arXiv:2405.18392), so that the last step has
        `final`.
        """
        if self.decay_start is None or step < self.decay_start:
            return 1.0
        done = min(1.0, (step + 1 - self.decay_start) / (total - self.decay_start))
        left = 1 - (math.sqrt(done) if self.shape == "sqrt" else done)
        return self.final + (1 - self.final) * left

    def check_length(self, total: int, epoch_steps: int) -> None:
        """Raise ValueError where warm-up or decay have no place in the run."""
        super().check_length(total, epoch_steps)
        self.check_decay(total, self.warmup_steps(epoch_steps))

    def check_decay(self, total: int, warmup: int) -> None:
        """Raise ValueError where a run of so many steps, `warmup` of them rising, has no place for
        the decay.
        """
        if self.decay_start is not None and not warmup <= self.decay_start < total:
            raise ValueError(
                f"schedule.decay_start={self.decay_start} does not lie between the end of the "
                f"warm-up, step {warmup}, and the run's last step, {total}; set it to about "
                f"{max(warmup, total - max(1, total // 5))}, or to null for a run without a "
                "decay."
            )


class SteppedCosineRestartSchedule(Schedule):
    """Cosine from peak to valley in every cycle; peak and valley shrink from cycle to cycle, down
    to a floor.
    """

    kind: Literal["stepped_cosine_restart"] = "stepped_cosine_restart"
    """Restarting cosine whose peak and valley decay."""
    cycle: Count | None = None
    """Steps of a cycle; null is one epoch."""
    valley: Share = 0.5
    """The first cycle's lowest point, as a share of the learning rate."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Factor on peak and valley from one cycle to the next."""
    floor: Share = 0.01
    """Lower bound of peak and valley, as a share of the learning rate."""

    def factor(self, step: int, total: int, epoch_steps: int) -> float:
        """Fall along half a cosine from peak to valley in each cycle (SGDR, Loshchilov & Hutter
        2017, arXiv:1608.03983): peak 1 and `valley` are multiplied by `decay` from cycle to cycle,
        and never below `floor`."""
        number, place = divmod(step, self.cycle or epoch_steps)
        decay = self.decay**number
        peak = max(self.floor, decay)
        low = max(self.floor, self.valley * decay)
        return low + (peak - low) * 0.5 * (
            1 + math.cos(math.pi * place / (self.cycle or epoch_steps))
        )


ScheduleSpec = Annotated[
    ConstantSchedule
    | WarmupCosineSchedule
    | WarmupStableDecaySchedule
    | SteppedCosineRestartSchedule,
    Field(discriminator="kind"),
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

    A norm more than `z` standard deviations above the moving mean is clipped to mean + z^2 / its
    own z-score standard deviations; the clipped norm enters mean and variance. Costs a wait for the
    GPU in every step.
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

    The average takes the clipped norm after the limit is set; the first norm starts it and is not
    clipped. Costs a wait for the GPU in every step.
    """

    kind: Literal["zclip_ratio"] = "zclip_ratio"
    """Clipping by ratio to the moving average."""
    ratio: Annotated[float, Field(ge=1)] = 2.5
    """Limit, as a multiple of the average."""
    decay: Fraction = 0.99
    """Decay of the moving average."""


ClipSpec = Annotated[NoClip | NormClip | ZClip | RatioZClip, Field(discriminator="kind")]


class Ema(Spec):
    """Exponential moving average of the weights in float32; sampling and evaluation use it."""

    decay: Fraction = 0.999
    """In the long run. At step n the decay is min(decay, (1 + n) / (10 + n)): short runs forget
    their start.
    """


class Averages(Spec):
    """Averages of the weights from which those of other lengths are rebuilt after the run (`ditlab
    evaluate --ema`).

    Each is an average of power-function profile (Karras et al. 2024, arXiv:2312.02696) in float32,
    beside `ema`; none changes what is trained, so they may be added to a run that goes on.
    """

    lengths: Annotated[tuple[Length, ...], Field(min_length=1, max_length=4, strict=False)] = (
        0.05,
        0.10,
    )
    """Relative lengths that are kept: the profile's standard deviation as a fraction of the updates
    so far. Lengths from the shortest of these to 0.25 can be rebuilt."""
    snapshots: Annotated[int, Field(ge=4, le=1000)] = 24
    """Snapshots of all lengths are at most this fraction (1 / snapshots) of the run apart, and
    closer together in its beginning: about ten more than this number, kept whatever
    `checkpoint.keep` says."""

    @field_validator("lengths")
    @classmethod
    def _ascending(cls, lengths: tuple[float, ...]) -> tuple[float, ...]:
        once = sorted(set(lengths))
        if once != list(lengths):
            raise ValueError(
                f"training.averages.lengths={list(lengths)} must name each length once, the "
                f"shortest first; set them to {once}."
            )
        return lengths


class EarlyStop(Spec):
    """End of a run whose evaluations have stopped to get better. The learning rate's schedule is
    that of all steps.
    """

    metric: Nonempty
    """Metric of the evaluations, such as `eval/velocity`."""
    mode: Literal["min", "max"] = "min"
    """`min`: lower values are better; `max`: higher ones."""
    patience: Count = 5
    """Evaluations in a row without a better value, after which the run ends with a checkpoint, as
    finished.
    """
    min_delta: NonNegativeFloat = 0.0
    """A value is better if it differs from the best one so far by more than this."""


class NonFinite(Spec):
    """Treatment of a step whose loss or gradient is NaN or infinite. Its update never reaches the
    weights.
    """

    policy: Literal["skip", "rollback", "stop"] = "skip"
    """`skip` drops the step's update and goes on; `rollback` returns to the last checkpoint and
    skips the step when it comes again, for states that were damaged before it showed; `stop` ends
    the run."""
    limit: Count = 10
    """Such steps in a row, or roll-backs in a row to one checkpoint, after which the run has
    diverged and ends.
    """


class Training(Spec):
    """Length and arithmetic of a run."""

    steps: Count | None = None
    """Optimiser steps. Give this or `epochs`."""
    epochs: Count | None = None
    """Passes over the training samples, each without its last partial batch. Give this or
    `steps`.
    """
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward passes; master weights, moments and the average are
    float32 always.
    """
    clip: ClipSpec = NormClip()
    """Clipping of large gradients."""
    non_finite: NonFinite = NonFinite()
    """Steps with a NaN or infinite loss or gradient. With fp16 the loss scale sees to its own
    overflows first.
    """
    ema: Ema | None = Ema()
    """Moving average of the weights; null for none."""
    averages: Averages | None = None
    """Averages that are kept for rebuilding others after the run; null for none."""
    freeze: Annotated[tuple[Pattern, ...], Field(strict=False)] | None = None
    """Patterns of parameters that stay as they are, such as ["blocks.0", "*.mlp.*"]; adapters are
    trained always. Null: none, with `lora` all of the network."""
    lora: LoRA | None = None
    """Low-rank adapters of Linears; null for none."""
    stop: EarlyStop | None = None
    """End before the last step where evaluations get no better; null: never. It changes no step.
    Null lets a resumed run go on after its early stop; other values act on a run that has not
    stopped."""

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if self.steps is None and self.epochs is None:
            raise ValueError("training.steps and training.epochs are both null; give one of them.")
        if self.steps is not None and self.epochs is not None:
            raise ValueError(
                f"training.steps={self.steps} and training.epochs={self.epochs} exclude each "
                "other; remove one: set training.epochs to null for a run of so many steps, or "
                "training.steps to null."
            )
        return self


class Batch(Spec):
    """Samples of one optimiser step."""

    size: Count = 128
    """Global batch: samples of one optimiser step over all workers."""
    micro: Count | None = None
    """Samples of one forward pass on one worker; the rest is accumulation. Random draws are made by
    micro-batch. Null: size / workers, with draws made for the whole batch, so that the number of
    workers changes none."""
