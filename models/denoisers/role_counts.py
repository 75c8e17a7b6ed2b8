"""Parameters of a model by their role, alike ones of its blocks in one entry; without allocating any."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import nn

from denoisers.contract import ModelSpec, ObjectiveSpec
from denoisers.contract.roles import Role
from denoisers.families import family_of
from denoisers.parameter_roles import parameter_roles

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class RoledParameters:
    """Parameters of one shape and role, whose names differ in numbers of blocks alone."""

    name: str
    """Name with `*` for the numbers: `blocks.*.mlp.up.weight`."""
    shape: tuple[int, ...]
    role: Role
    num_parts: int
    """Matrices that each consists of: 3 for fused queries, keys and values."""
    copies: int = 1

    @property
    def total(self) -> int:
        """Values of all copies together."""
        return self.copies * prod(self.shape)


def count_by_role(model: ModelSpec, objective: ObjectiveSpec) -> list[RoledParameters]:
    """List the parameters of the network, then those that the loss trains (`objective.NAME`), in their order."""
    with torch.device("meta"):
        family = family_of(model)
        modules = {"": family.build_network(model), "objective.": family.build_objective(objective, model).modules}
    found: dict[RoledParameters, int] = {}
    for prefix, module in modules.items():
        if isinstance(module, nn.Module):
            roles = parameter_roles(module)
            for name, parameter in module.named_parameters():
                label = _NUMBER.sub("*", f"{prefix}{name}")
                one = RoledParameters(label, tuple(parameter.shape), roles[name].role, roles[name].num_parts)
                found[one] = found.get(one, 0) + 1
    return [replace(one, copies=copies) for one, copies in found.items()]
