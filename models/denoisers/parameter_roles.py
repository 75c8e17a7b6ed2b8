"""Roles of a network's parameters, read from its modules."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from denoisers.contract.roles import Role, RoledNetwork

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class ParameterRole:
    """Role of a parameter, and the matrices that it consists of."""

    role: Role
    num_parts: int = 1
    """Matrices of equal size, one below the other, that a fused weight consists of: 3 for queries, keys, values."""
    is_transposed: bool = False
    """True where the first two axes are (inputs, outputs): the kernel of a transposed convolution."""


def parameter_roles(module: nn.Module) -> dict[str, ParameterRole]:
    """Return the role of each parameter of a module by its name.

    In this order: norms' weights and biases are `norm`, other biases `bias`; embeddings' tables, and other parameters
    named by `role_modules` of a network within, have the role that it names; weights of convolutions are `convolution`,
    of linear maps `matrix`; of what is left, parameters of one number are `scalar` and the others `embedding`. A module
    with an attribute `fused_parts` has a weight of so many matrices.
    """
    named: dict[int, Role] = {}
    for owner in module.modules():
        if isinstance(owner, RoledNetwork):
            for role, modules in owner.role_modules().items():
                named |= {id(each): role for part in modules for each in part.modules()}
    return {
        f"{path}.{name}" if path else name: _role(owner, name, parameter.numel(), named.get(id(owner)))
        for path, owner in module.named_modules()
        for name, parameter in owner.named_parameters(recurse=False)
    }


def _role(owner: nn.Module, name: str, size: int, named: Role | None) -> ParameterRole:
    if isinstance(owner, NORMS):
        return ParameterRole("norm")
    if name == "bias":
        return ParameterRole("bias")
    if named is not None:
        return ParameterRole(named)
    if isinstance(owner, nn.Embedding):
        return ParameterRole("embedding")
    if isinstance(owner, CONVOLUTIONS):
        return ParameterRole("convolution")
    if isinstance(owner, TRANSPOSED):
        return ParameterRole("convolution", is_transposed=True)
    if isinstance(owner, nn.Linear):
        return ParameterRole("matrix", int(getattr(owner, "fused_parts", 1)))
    return ParameterRole("scalar" if size == 1 else "embedding")
