"""Parameters of a model: their counts by component and by role, without allocating any, and the
roles themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ditlab_models.contract import ModelSpec, Network, Objective, ObjectiveSpec, Role, RoledNetwork
from ditlab_models.families import family_of
from ditlab_models.finetuning import FineTuning, fine_tune, select

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAST_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


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
    not_trained: dict[str, int] = field(default_factory=dict)
    """Parameters without gradients by the widest module that holds no others, `*` for numbers of
    blocks; those of the objective's modules are below `objective`.
    """

    @property
    def frozen(self) -> int:
        """Parameters of the network that stay as they are."""
        return self.total - self.trainable


class _NoInitialValues(TorchFunctionMode):
    """Mode in which torch's initialisers leave tensors as they are.

    On the meta device these have no values, and a normal distribution there makes torch load its
    compiler, two seconds.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if getattr(function, "__module__", "") == "torch.nn.init":
            tensor: Tensor = args[0] if args else given["tensor"]
            return tensor
        return function(*args, **given)


@dataclass(frozen=True)
class MetaModel:
    """A network and its objective on the meta device: shapes and names, no memory and no values."""

    network: Network
    objective: Objective

    @classmethod
    def build(
        cls, model: ModelSpec, objective: ObjectiveSpec, tuning: FineTuning | None = None
    ) -> MetaModel:
        """Build both, in milliseconds for a network of any size, with what `tuning` freezes and
        adapts.

        Raises ValueError where they do not fit, where nothing would be trained, and for patterns
        that match nothing.
        """
        with torch.device("meta"), _NoInitialValues():
            family = family_of(model)
            network: Any = family.build_network(model)
            built = cls(network, family.build_objective(objective, model))
            if tuning is not None:
                fine_tune(network, built.objective.modules, tuning)
            trained = (network, built.objective.modules or nn.Module())
            parameters = chain.from_iterable(each.parameters() for each in trained)
            if not any(each.requires_grad for each in parameters):
                raise ValueError(
                    f"model.family={model.family} freezes every parameter of its network, so "
                    "nothing would be trained; leave some with requires_grad."
                )
            return built

    def check_rates(self, patterns: Iterable[str]) -> None:
        """Raise ValueError for a pattern of `optimizer.lr_patterns` that matches no trained
        parameter.
        """
        parts: dict[str, Any] = {
            "": self.network,
            "objective.": self.objective.modules or nn.Module(),
        }
        names = []
        for prefix, part in parts.items():
            for name, parameter in part.named_parameters():
                if parameter.requires_grad:
                    names.append(f"{prefix}{name}")
        select("optimizer.lr_patterns", patterns, names, "trained parameter")

    @cached_property
    def counts(self) -> ParameterCount:
        """Numbers of parameters."""
        return count_network(self.network, self.objective.modules)


def count_parameters(
    model: ModelSpec, objective: ObjectiveSpec | None = None, tuning: FineTuning | None = None
) -> ParameterCount:
    """Count on the meta device, in milliseconds and without memory for a network of any size."""
    if objective is not None:
        return MetaModel.build(model, objective, tuning).counts
    with torch.device("meta"), _NoInitialValues():
        return count_network(family_of(model).build_network(model))


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def count_network(network: Network, objective_modules: nn.Module | None = None) -> ParameterCount:
    """Count an existing network. Asserts that its components hold every parameter exactly once."""
    assert isinstance(network, nn.Module)
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    owner: dict[int, str] = {}
    components: dict[str, int] = {}
    for component, modules in network.components().items():
        components[component] = 0
        for parameter in chain.from_iterable(module.parameters() for module in modules):
            assert id(parameter) in names, (
                f"component '{component}' holds a parameter that the network does not"
            )
            assert id(parameter) not in owner, (
                f"{names[id(parameter)]} is counted twice: in '{owner[id(parameter)]}' and in "
                f"'{component}'"
            )
            owner[id(parameter)] = component
            components[component] += parameter.numel()
    missed = [name for key, name in names.items() if key not in owner]
    assert not missed, f"no component holds {', '.join(missed)}"
    trainable = _size(parameter for parameter in network.parameters() if parameter.requires_grad)
    training_only = {}
    not_trained = _frozen_groups(network)
    if objective_modules is not None:
        children = objective_modules.named_children()
        training_only = {name: _size(child.parameters()) for name, child in children}
        not_trained |= _frozen_groups(nn.ModuleDict({"objective": objective_modules}))
    return ParameterCount(
        sum(components.values()), trainable, components, training_only, not_trained
    )


def _frozen_groups(root: nn.Module) -> dict[str, int]:
    """Return the parameters that take no gradients, by the widest modules that hold no others.
    Those of all blocks have one name, with `*` for the numbers.
    """
    sizes: dict[str, int] = {}
    seen = set[int]()

    def visit(module: nn.Module, path: str) -> None:
        own = [each for each in module.parameters() if id(each) not in seen]
        if own and not any(each.requires_grad for each in own):
            sizes[path or "network"] = _size(own)
            seen.update(map(id, own))
            return
        for name, parameter in module.named_parameters(path, recurse=False):
            if not parameter.requires_grad and id(parameter) not in seen:
                sizes[name] = parameter.numel()
                seen.add(id(parameter))
        for name, child in module.named_children():
            visit(child, f"{path}.{name}".lstrip("."))

    visit(root, "")
    names = chain(dict(root.named_modules()), dict(root.named_parameters()))
    num_alike = Counter(_LAST_NUMBER.sub("*", name) for name in names)
    num_frozen = Counter(_LAST_NUMBER.sub("*", name) for name in sizes)
    found = Counter[str]()
    for name, size in sizes.items():
        label = _LAST_NUMBER.sub("*", name)
        if num_frozen[label] < num_alike[label]:
            label = name
        found[label] += size
    return dict(found)


@dataclass(frozen=True)
class ParameterRole:
    """Role of a parameter, and the matrices that it consists of."""

    role: Role
    num_parts: int = 1
    """Matrices of equal size, one below the other, that a fused weight consists of: 3 for queries,
    keys, values.
    """
    is_transposed: bool = False
    """True where the first two axes are (inputs, outputs): the kernel of a transposed
    convolution.
    """


def parameter_roles(module: nn.Module) -> dict[str, ParameterRole]:
    """Return the role of each parameter of a module by its name.

    In this order: norms' weights and biases are `norm`, other biases `bias`; embeddings' tables,
    and other parameters named by `role_modules` of a network within, have the role that it names;
    weights of convolutions are `convolution`, of linear maps `matrix`; of what is left, parameters
    of one number are `scalar` and the others `embedding`. A module with an attribute `fused_parts`
    has a weight of so many matrices.
    """
    named: dict[int, Role] = {}
    for owner in module.modules():
        if isinstance(owner, RoledNetwork):
            for role, modules in owner.role_modules().items():
                for part in modules:
                    named |= {id(each): role for each in part.modules()}
    found = {}
    for path, owner in module.named_modules():
        for name, parameter in owner.named_parameters(prefix=path, recurse=False):
            found[name] = _role(owner, name, parameter.numel(), named.get(id(owner)))
    return found


def _role(owner: nn.Module, name: str, size: int, named: Role | None) -> ParameterRole:
    """Return the role of a parameter by its full name and its owner's role, if it is `named`."""
    name = name.rpartition(".")[2]
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
        num_parts = 1
        if name == "weight":
            num_parts = int(getattr(owner, "fused_parts", 1))
        return ParameterRole("matrix", num_parts)
    return ParameterRole("scalar" if size == 1 else "embedding")


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


def count_by_role(
    model: ModelSpec, objective: ObjectiveSpec, tuning: FineTuning | None = None
) -> list[RoledParameters]:
    """List the parameters of the network, then those that the loss trains (`objective.NAME`), in
    their order.
    """
    built = MetaModel.build(model, objective, tuning)
    modules = {"": built.network, "objective.": built.objective.modules}
    found: dict[RoledParameters, int] = {}
    for prefix, module in modules.items():
        if isinstance(module, nn.Module):
            roles = parameter_roles(module)
            for name, parameter in module.named_parameters():
                label = _NUMBER.sub("*", f"{prefix}{name}")
                one = RoledParameters(
                    label, tuple(parameter.shape), roles[name].role, roles[name].num_parts
                )
                found[one] = found.get(one, 0) + 1
    return [replace(one, copies=copies) for one, copies in found.items()]
