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
from ditlab.spec.optimisation.optimisers import AdamW, GroupRates, Muon


@dataclass(frozen=True)
class ParameterFacts:
    """Role and shape of a parameter, as an optimiser needs them."""

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
    groups: dict[GroupRates, dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        rates = spec.rates(facts[name].role.role)
        if rates not in groups:
            groups[rates] = {
                "params": [],
                "lr": spec.lr * rates.lr_factor,
                "lr_factor": rates.lr_factor,
                "weight_decay": rates.weight_decay,
                "is_orthogonalised": rates.is_orthogonalised,
            }
        groups[rates]["params"].append(parameter)
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
