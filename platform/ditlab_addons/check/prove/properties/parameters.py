"""Parameters: the engine trains those that the spec does not freeze, and their roles are those of
their modules' classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from ditlab.spec.optimization import Training
from ditlab_addons.check.prove.findings import Findings
from ditlab_addons.check.prove.reference import ReferenceTrainer
from ditlab_models.contract import Role, RoledNetwork
from ditlab_models.finetuning import matches

MOST_NAMES = 6
"""Modules that a sentence lists."""
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
WEIGHT_ROLES: Mapping[type[nn.Module], Role] = {
    nn.Embedding: "embedding",
    nn.Linear: "matrix",
    nn.Conv1d: "convolution",
    nn.Conv2d: "convolution",
    nn.Conv3d: "convolution",
}
"""Role of a weight by its module's class, where the network names no other."""


def compare_parameters(
    reference: ReferenceTrainer, trained: Iterable[str], findings: Findings
) -> None:
    """Compare what trains, and roles. `trained`: names of the parameters that the engine trains."""
    compare_trained(reference, trained, findings)
    roles = {name: own.role for name, own in reference.settings.items()}
    compare_roles(reference.build().module, roles, findings)


def compare_trained(
    reference: ReferenceTrainer, trained: Iterable[str], findings: Findings
) -> None:
    """Compare the parameters that do not train with those that the spec freezes, and those that the
    engine trains with the reference's. `trained`: names of the engine's."""
    engine = set(trained)
    untrained = sorted(reference.frozen | (set(reference.settings) - engine))
    frozen = frozen_by_spec(untrained, reference.experiment.training)
    if untrained:
        num = len(reference.frozen) + len(reference.settings)
        how = "as training.freeze and training.lora say"
        if len(frozen) < len(untrained):
            how = f"{len(untrained) - len(frozen)} of them without training.freeze"
        findings.untrained.append(
            f"{len(untrained)} of {num} parameters do not train, {how}: those of "
            f"{listed_modules(untrained)}."
        )
    remedy = "name it in training.freeze if that is meant"
    wrong = [f"{name} does not train; {remedy}" for name in untrained if name not in frozen]
    wrong += [f"{name} trains" for name in sorted(engine - set(reference.settings))]
    findings.same("parameters", "those that do not train are frozen by the spec", wrong)


def frozen_by_spec(names: Iterable[str], tuning: Training) -> set[str]:
    """Return the parameters that `training.freeze` names; without it, `training.lora` freezes the
    network's own."""
    if tuning.freeze is None:
        if tuning.lora is None:
            return set()
        return {name for name in names if name.startswith("network.")}
    found = set()
    for name in names:
        label = name.removeprefix("network.")
        if any(matches(pattern, label) for pattern in tuning.freeze):
            found.add(name)
    return found


def listed_modules(names: Sequence[str]) -> str:
    """List the modules of parameters: MOST_NAMES by name, and the number of further ones."""
    modules = [*Counter(name.rpartition(".")[0] for name in names)]
    shown = ", ".join(modules[:MOST_NAMES])
    if len(modules) > MOST_NAMES:
        shown += f" and {len(modules) - MOST_NAMES} more"
    return shown


def compare_roles(module: nn.Module, roles: Mapping[str, str], findings: Findings) -> None:
    """Compare the role of each parameter with that of its module's class, for torch's norms,
    embeddings, Linears and convolutions. Weights that the network names have the named role."""
    due = roles_by_class(module)
    wrong = [
        f"{name} has the role {roles[name]}, not {due[id(parameter)]}"
        for name, parameter in module.named_parameters()
        if name in roles and due.get(id(parameter), roles[name]) != roles[name]
    ]
    findings.same("parameters", "roles by their module's class", wrong)


def roles_by_class(module: nn.Module) -> dict[int, Role]:
    """Return the roles that the classes of a module's parts give, by the parameter's id."""
    named: dict[int, Role] = {}
    for network in module.modules():
        if isinstance(network, RoledNetwork):
            for role, modules in network.role_modules().items():
                for part in modules:
                    named |= {id(each): role for each in part.modules()}
    found: dict[int, Role] = {}
    for owner in module.modules():
        if isinstance(owner, NORMS):
            found |= {id(each): "norm" for each in owner.parameters(recurse=False)}
            continue
        for kind, role in WEIGHT_ROLES.items():
            if isinstance(owner, kind):
                found[id(owner.weight)] = named.get(id(owner), role)
                bias = getattr(owner, "bias", None)
                if bias is not None:
                    found[id(bias)] = "bias"
    return found
