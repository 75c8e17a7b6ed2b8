"""An optimiser over a module's parameters: its groups by role, and the matrices of its partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

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
    optimizer: Any, partitions: Partitions, facts: dict[str, ParameterFacts], num_workers: int, is_partitioned: bool
) -> None:
    """Tell Muon which matrices the flat parameters of the partitions consist of; nothing for AdamW.

    Every worker must call it, as each learns the others' slices.
    """
    if not isinstance(optimizer, MuonAdamW):
        return
    matrices = {}
    for flat, members, slices in zip(partitions.flats, partitions.members, partitions.slices_of, strict=True):
        own = {part.name: part for part in slices}
        offsets = [own[name].offset if name in own else 0 for name in members]
        held = [own[name].stop - own[name].start if name in own else 0 for name in members]
        sizes = _of_all_workers(held, num_workers, flat.device) if is_partitioned else [[each] for each in held]
        matrices[id(flat)] = [
            HeldMatrix(WholeMatrix(facts[name].shape, facts[name].role), flat, offset, num_held, by_worker)
            for name, offset, num_held, by_worker in zip(members, offsets, held, sizes, strict=True)
        ]
    optimizer.bind(matrices, num_workers, is_partitioned)


def _of_all_workers(counts: list[int], num_workers: int, device: torch.device) -> list[list[int]]:
    """Return each worker's number, by rank, for each of this worker's numbers."""
    own = torch.tensor(counts, device=device)
    found = [torch.empty_like(own) for _ in range(num_workers)]
    distributed.all_gather(found, own)
    numbers: list[list[int]] = torch.stack(found, 1).tolist()
    return numbers
