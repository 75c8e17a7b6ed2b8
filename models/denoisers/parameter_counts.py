"""Parameter counts by component, without allocating a parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn

from denoisers.contract import ModelSpec, Network, ObjectiveSpec
from denoisers.families import family_of


@dataclass(frozen=True)
class ParameterCount:
    """Numbers of parameters of a model."""

    total: int
    """Parameters of the network."""
    trainable: int
    """Parameters of the network that take gradients."""
    components: dict[str, int]
    """Parameters of the network's named groups; their sum is `total`."""
    training_only: dict[str, int] = field(default_factory=dict)
    """Parameters of the objective's modules by name: trained, never part of `total`."""


def count_parameters(model: ModelSpec, objective: ObjectiveSpec | None = None) -> ParameterCount:
    """Count on the meta device, in milliseconds and without memory for a network of any size."""
    with torch.device("meta"):
        family = family_of(model)
        network = family.build_network(model)
        modules = None if objective is None else family.build_objective(objective, model).modules
    return count_network(network, modules)


def count_network(network: Network, objective_modules: nn.Module | None = None) -> ParameterCount:
    """Count an existing network. Asserts that its components hold every parameter exactly once."""
    assert isinstance(network, nn.Module)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    owner: dict[int, str] = {}
    components: dict[str, int] = {}
    for component, modules in network.components().items():
        components[component] = 0
        for parameter in (parameter for module in modules for parameter in module.parameters()):
            assert id(parameter) in names, f"component '{component}' holds a parameter that the network does not"
            assert id(parameter) not in owner, (
                f"{names[id(parameter)]} is counted twice: in '{owner[id(parameter)]}' and in '{component}'"
            )
            owner[id(parameter)] = component
            components[component] += parameter.numel()
    missed = [name for key, name in names.items() if key not in owner]
    assert not missed, f"no component holds {', '.join(missed)}"
    trainable = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    training_only = {}
    if objective_modules is not None:
        training_only = {name: _size(child) for name, child in objective_modules.named_children()}
    return ParameterCount(sum(components.values()), trainable, components, training_only)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
