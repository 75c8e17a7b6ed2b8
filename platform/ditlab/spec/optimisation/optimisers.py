"""Optimisers, and what they do by role of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from denoisers.contract import Role, Spec
from ditlab.spec.optimisation.numbers import Fraction, Positive

ORTHOGONALISED: tuple[Role, ...] = ("matrix", "convolution")
"""Roles of the parameters that Muon updates by an orthogonalised momentum."""
GATHERED_VALUES = 2**25
"""Values of the matrices that a worker gathers at once to orthogonalise them, 128 MiB; a larger one comes alone."""


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


LATER: dict[str, Any] = {"no_decay": [], "lr_factors": RoleFactors().model_dump()}
"""Fields that came after the first runs, with the value under which a run is what it was without them."""


@dataclass(frozen=True)
class GroupRates:
    """How the parameters of one group of an optimiser are updated."""

    lr_factor: float
    """Factor on a step's learning rate."""
    weight_decay: float
    moments: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    """Names of a parameter's tensors of optimiser state, each as large as it, in float32."""

    @property
    def is_orthogonalised(self) -> bool:
        """True where an update is Muon's, False where it is AdamW's."""
        return self.moments == ("momentum",)


class _ByRole(Spec):
    """Base of the optimisers: weight decay and learning rate by role of a parameter."""

    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled decay per unit of learning rate, on every parameter but those of `no_decay`."""
    no_decay: tuple[Role, ...] = Field(default=(), strict=False)
    """Roles of the parameters without weight decay, such as [norm, bias, embedding]; `lr_factors` lists them."""
    lr_factors: RoleFactors = RoleFactors()
    """Factors on the learning rate by role of a parameter."""

    @field_validator("no_decay")
    @classmethod
    def _each_once(cls, roles: tuple[Role, ...]) -> tuple[Role, ...]:
        if len(set(roles)) < len(roles):
            raise ValueError(f"optimizer.no_decay={list(roles)} names a role twice; name each once.")
        return roles

    def rates(self, role: Role) -> GroupRates:
        """Return how parameters of a role are updated; those of equal rates form a group."""
        decay = 0.0 if role in self.no_decay else self.weight_decay
        return GroupRates(float(getattr(self.lr_factors, role)), decay)

    def check(self, offload: str) -> None:
        """Raise ValueError where the state cannot be kept in such a place (`engine.zero.offload`)."""


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


class Muon(_ByRole):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for matrices and convolutions, AdamW for the rest.

    The update of a matrix is its momentum with all singular values brought near 1 by five Newton-Schulz iterations, in
    float32 on a CPU and bfloat16 on a GPU. A fused weight (queries, keys, values; the parts of a modulation) counts as
    the matrices that it consists of, a convolution's kernel as the matrix (channels out, channels in x height x width).
    Gradients are clipped before they enter the momentum. Inputs, heads, embeddings, norms, biases and scalars are
    AdamW's.
    """

    kind: Literal["muon"] = "muon"
    """Orthogonalised momentum for matrices, AdamW for the rest."""
    lr: Positive = 1e-3
    """Learning rate of the matrices; the schedule multiplies it."""
    adamw_lr: Positive | None = None
    """Learning rate of the rest, under the same schedule; null: `lr`, which `scale: rms` is made for."""
    momentum: Fraction = 0.95
    """Decay rate of the momentum, of which gradients are summed."""
    nesterov: bool = True
    """Orthogonalise gradient + `momentum` times the momentum, in the place of the momentum."""
    scale: Literal["rms", "spectral"] = "rms"
    """Factor on an orthogonalised (rows, columns) matrix. `rms`: 0.2 sqrt(max(rows, columns)), updates as large as
    AdamW's, so its learning rates and decays carry over (Liu et al. 2025, arXiv:2502.16982, eq. 4); `spectral`:
    sqrt(max(1, rows / columns)) (Jordan et al. 2024), with learning rates around 0.02."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """Added to the root of AdamW's second moment."""

    def check(self, offload: str) -> None:
        """Refuse state off the workers' devices: a CPU would orthogonalise for minutes."""
        if offload != "none":
            raise ValueError(
                f"optimizer.kind=muon orthogonalises on the workers' devices, and engine.zero.offload={offload} keeps "
                "its state elsewhere; set engine.zero.offload to none, or optimizer.kind to adamw."
            )

    def rates(self, role: Role) -> GroupRates:
        """Return how parameters of a role are updated: matrices and convolutions with one moment, the momentum."""
        rates = super().rates(role)
        if role in ORTHOGONALISED:
            return replace(rates, moments=("momentum",))
        return rates if self.adamw_lr is None else replace(rates, lr_factor=rates.lr_factor * self.adamw_lr / self.lr)


def _adamw_without_kind(value: Any) -> Any:
    """Take fields without a `kind` for AdamW's, the default."""
    return {"kind": "adamw", **value} if isinstance(value, Mapping) else value


OptimizerSpec = Annotated[AdamW | Muon, Field(discriminator="kind"), BeforeValidator(_adamw_without_kind)]
