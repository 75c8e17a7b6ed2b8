"""An optimiser over a module's parameters: its groups by role, and the matrices of its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from denoisers.parameter_roles import ParameterRole, parameter_roles
from ditlab.engine.optimisers.matrices import HeldMatrix, WholeMatrix
from ditlab.engine.optimisers.muon import MuonAdamW
from ditlab.engine.partitions import Partitions
from ditlab.spec.optimisation.optimisers import ORTHOGONALISED, AdamW, Muon


@dataclass(frozen=True)
class ParameterFacts:
    """What an optimiser knows of a parameter."""

    role: ParameterRole
    shape: tuple[int, ...]


def parameter_facts(module: nn.Module) -> dict[str, ParameterFacts]:
    """Return the facts of each parameter by its name; before DeepSpeed partitions them."""
    roles = parameter_roles(module)
    return {name: ParameterFacts(roles[name], tuple(each.shape)) for name, each in module.named_parameters()}


def build_optimizer(
    module: nn.Module, facts: dict[str, ParameterFacts], spec: AdamW | Muon
) -> torch.optim.AdamW | MuonAdamW:
    """Build an optimiser; each group holds `lr_factor`, which a step's learning rate is multiplied by."""
    groups: dict[tuple[bool, float, float], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        role = facts[name].role.role
        is_orthogonalised = isinstance(spec, Muon) and role in ORTHOGONALISED
        factor = float(getattr(spec.lr_factors, role))
        if isinstance(spec, Muon) and not is_orthogonalised and spec.adamw_lr is not None:
            factor *= spec.adamw_lr / spec.lr
        decay = 0.0 if role in spec.no_decay else spec.weight_decay
        key = (is_orthogonalised, factor, decay)
        if key not in groups:
            groups[key] = {"params": [], "lr": spec.lr * factor, "lr_factor": factor, "weight_decay": decay}
            groups[key]["is_orthogonalised"] = is_orthogonalised
        groups[key]["params"].append(parameter)
    if isinstance(spec, Muon):
        return MuonAdamW(list(groups.values()), spec)
    return torch.optim.AdamW(list(groups.values()), betas=spec.betas, eps=spec.eps, fused=True)


def bind_matrices(
    optimizer: Any, partitions: Partitions, facts: dict[str, ParameterFacts], is_partitioned: bool
) -> None:
    """Tell Muon which matrices the flat parameters of the partitions consist of; nothing for AdamW."""
    if not isinstance(optimizer, MuonAdamW):
        return
    matrices = {}
    for flat, members, slices in zip(partitions.flats, partitions.members, partitions.slices_of, strict=True):
        own = {part.name: part for part in slices}
        matrices[id(flat)] = [
            _held(WholeMatrix(facts[name].shape, facts[name].role), flat, own.get(name)) for name in members
        ]
    optimizer.bind(matrices, is_partitioned)


def _held(matrix: WholeMatrix, flat: torch.Tensor, part: Any) -> HeldMatrix:
    return HeldMatrix(matrix, flat) if part is None else HeldMatrix(matrix, flat, part.offset, part.start, part.stop)
