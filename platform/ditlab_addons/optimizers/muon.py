"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): its fields, and the matrices that
parameters are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ditlab.spec.optimization import Fraction, GroupRates, Optimizer, Positive
from ditlab_models.contract import Role

if TYPE_CHECKING:
    from ditlab_models.parameters import ParameterRole

ORTHOGONALISED: tuple[Role, ...] = ("matrix", "convolution")
"""Roles of the parameters that are updated by an orthogonalised momentum."""


class Muon(Optimizer):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for matrices and convolutions,
    AdamW for the rest.

    The update of a matrix is its momentum with all singular values brought near 1 by five
    Newton-Schulz iterations, in float32 on a CPU and bfloat16 on a GPU. A fused weight (queries,
    keys, values; the parts of a modulation) counts as the matrices that it consists of, a
    convolution's kernel as the matrix (channels out, channels in x height x width). Gradients are
    clipped before they enter the momentum. Inputs, heads, embeddings, norms, biases and scalars are
    AdamW's.
    """

    kind: Literal["muon"] = "muon"
    """Orthogonalised momentum for matrices, AdamW for the rest."""
    moments: ClassVar = ("exp_avg", "exp_avg_sq")
    takes_offload: ClassVar[bool] = False
    lr: Positive = 1e-3
    """Learning rate of the matrices; the schedule multiplies it."""
    adamw_lr: Positive | None = None
    """Learning rate of the rest, under the same schedule; null: `lr`, which `scale: rms` is made
    for.
    """
    momentum: Fraction = 0.95
    """Decay rate of the momentum, of which gradients are summed."""
    nesterov: bool = True
    """Orthogonalise gradient + `momentum` times the momentum, in the place of the momentum."""
    scale: Literal["rms", "spectral"] = "rms"
    """Factor on an orthogonalised (rows, columns) matrix. `rms`: 0.2 sqrt(max(rows, columns)),
    updates as large as AdamW's, so its learning rates and decays carry over (Liu et al. 2025,
    arXiv:2502.16982, eq. 4); `spectral`: sqrt(max(1, rows / columns)) (Jordan et al. 2024), with
    learning rates around 0.02."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""
    eps: Positive = 1e-8
    """Added to the root of AdamW's second moment."""

    def check(self, experiment: Any) -> None:
        """Refuse state off the workers' devices: a CPU would orthogonalise for minutes."""
        offload = experiment.engine.zero.offload
        if offload != "none":
            raise ValueError(
                "optimizer.kind=muon orthogonalises on the workers' devices, and "
                f"engine.zero.offload={offload} keeps its state elsewhere; set "
                "engine.zero.offload to none, or optimizer.kind to adamw."
            )

    def rates(self, role: Role, name: str = "") -> GroupRates:
        """Return how a parameter of a role is updated: matrices and convolutions with one moment,
        the momentum.
        """
        rates = super().rates(role, name)
        if role in ORTHOGONALISED:
            return replace(rates, moments=("momentum",))
        if self.adamw_lr is None:
            return rates
        return replace(rates, lr_factor=rates.lr_factor * self.adamw_lr / self.lr)

    def update_flops(self, shape: tuple[int, ...], role: ParameterRole) -> int:
        """Return the operations of the Newton-Schulz iterations of a matrix or a kernel."""
        from ditlab_addons.optimizers.muon_update import Matrices

        if role.role in ORTHOGONALISED:
            return Matrices(shape, role).flops
        return 0

    def build(self, groups: list[dict[str, Any]]) -> Any:
        """Return the optimiser of groups."""
        from ditlab_addons.optimizers.muon_update import MuonAdamW

        return MuonAdamW(groups, self)
