"""Low-rank adaptation of Linears, LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1): W x +
(alpha / rank) B A x.

An adapted module is the one it was, with two parameters more: base parameters keep names, shapes
and places, so that published weights and checkpoints of the base fit, and a state dict without the
two is that of the base.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from ditlab_models.layers.attention import QKV

A = "lora_A"
B = "lora_B"
"""Names of the two parameters: (rank, inputs) and (outputs, rank)."""


class LowRank(nn.Linear):
    """Linear with the product of two matrices beside its weight; stands in front of the class that
    it adapts.
    """

    lora_A: nn.Parameter  # noqa: N815 (the names that others use)
    lora_B: nn.Parameter  # noqa: N815
    lora_scale: float
    """alpha / rank."""

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (..., inputs) -> (..., outputs)."""
        return super().forward(x) + self.update(x)

    def update(self, x: Tensor, rows: slice | None = None) -> Tensor:
        """Compute (alpha / rank) B A x, or some rows of it."""
        outputs = self.lora_B if rows is None else self.lora_B[rows]
        return functional.linear(functional.linear(x, self.lora_A), outputs) * self.lora_scale


class LowRankQKV(LowRank):
    """Adapter of queries, keys and values in one Linear: one A for the three, rows of B as those of
    the weight.
    """

    def forward(  # type: ignore[override]
        self, x: Tensor, queries: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Project as `QKV.forward` does."""
        if queries is None:
            return super().forward(x)
        plain = super(LowRank, self).forward(x, queries)  # type: ignore[call-arg]
        width = x.shape[-1]
        more = (
            self.update(queries, slice(width)),
            *self.update(x, slice(width, None)).chunk(2, dim=-1),
        )
        q, k, v = (each + own for each, own in zip(plain, more, strict=True))
        return q, k, v


def is_adaptable(module: nn.Module) -> bool:
    """Return True for a Linear whose output is a product with its whole weight, and for fused
    queries, keys, values.
    """
    return isinstance(module, nn.Linear) and type(module).forward in (
        nn.Linear.forward,
        QKV.forward,
    )


@cache
def _adapted(base: type[nn.Linear]) -> type[nn.Linear]:
    front = LowRankQKV if issubclass(base, QKV) else LowRank
    return type(f"LowRank{base.__name__}", (front, base), {})


def adapt(module: nn.Module, rank: int, alpha: float, seed: int | None) -> None:
    """Adapt a Linear in place: A is drawn by Kaiming uniform from a generator of this seed (None:
    it keeps no values, as on the meta device), B is zero, so that the module computes what it did.
    """
    assert isinstance(module, nn.Linear)
    weight = module.weight
    first = torch.empty(rank, module.in_features, dtype=weight.dtype, device=weight.device)
    if seed is not None:
        nn.init.kaiming_uniform_(
            first, a=5**0.5, generator=torch.Generator(weight.device).manual_seed(seed)
        )
    module.__class__ = _adapted(type(module))  # type: ignore[arg-type]
    assert isinstance(module, LowRank)
    module.lora_A = nn.Parameter(first)
    module.lora_B = nn.Parameter(weight.new_zeros(module.out_features, rank))
    module.lora_scale = alpha / rank


def adapted_names(weights: Mapping[str, object]) -> list[str]:
    """Return the names of the adapted modules of a state dict."""
    return [name.removesuffix(f".{A}") for name in weights if name.endswith(f".{A}")]


def merge(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return a state dict of the base whose weights are W + scale B A, summed in float64."""
    merged = {name: each for name, each in weights.items() if not name.endswith((f".{A}", f".{B}"))}
    for name in adapted_names(weights):
        first = weights[f"{name}.{A}"].double()
        second = weights[f"{name}.{B}"].double()
        base = weights[f"{name}.weight"]
        merged[f"{name}.weight"] = (base.double() + scale * second @ first).to(base.dtype)
    return merged
