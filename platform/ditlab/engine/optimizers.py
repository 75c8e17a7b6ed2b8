"""Optimisers over a module's parameters: groups by role, AdamW, and the optimisers of add-ons."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ditlab.engine.deepspeed_internals import Partitions
from ditlab.errors import UserError
from ditlab.spec.optimization import AdamW, GroupRates, Optimizer
from ditlab_models.finetuning import parameter_label
from ditlab_models.parameters import ParameterRole, parameter_roles

MOMENT = "moment"
"""Beginning of the names of an added optimiser's state, by which a checkpoint's reader knows it."""


class ParameterFacts(NamedTuple):
    """Shape and role of a parameter; of two axes or more it is one matrix, or several of equal
    size.
    """

    shape: tuple[int, ...]
    role: ParameterRole


def parameter_facts(module: nn.Module) -> dict[str, ParameterFacts]:
    """Return the facts of each parameter by its name; before DeepSpeed partitions them."""
    roles = parameter_roles(module)
    return {
        name: ParameterFacts(tuple(each.shape), roles[name])
        for name, each in module.named_parameters()
    }


def build_optimizer(
    module: nn.Module,
    facts: Mapping[str, ParameterFacts],
    spec: AdamW | Optimizer,
    is_aligned: bool,
) -> EagerOptimizer:
    """Build an optimiser; each group holds `lr_factor`, which a step's learning rate is multiplied
    by.

    With `is_aligned` those parameters of a group come last whose size is no multiple of 8, so that
    in the buffer in which DeepSpeed lays a group out others begin at multiples of 16 bytes. Torch's
    compiled kernels for GPUs expect it of every block's parameters where the first block's were so,
    and end in `misaligned address`: 21 scalars of pixelhdm moved 274 other parameters.
    """
    groups: dict[GroupRates, dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue  # frozen: no group, so no state and no partition
        rates = spec.rates(facts[name].role.role, parameter_label(name))
        if rates not in groups:
            groups[rates] = {
                "params": [],
                "lr": spec.lr * rates.lr_factor,
                "lr_factor": rates.lr_factor,
                "weight_decay": rates.weight_decay,
                "moments": rates.moments,
            }
        groups[rates]["params"].append(parameter)
    if is_aligned:
        sizes = {
            parameter: math.prod(facts[name].shape) for name, parameter in module.named_parameters()
        }
        for group in groups.values():
            group["params"].sort(key=lambda parameter: sizes[parameter] % 8 > 0)
    described = list(groups.values())
    if isinstance(spec, AdamW):
        return EagerAdamW(described, betas=spec.betas, eps=spec.eps, fused=True)
    built: EagerOptimizer | None = spec.build(described)
    if built is None:
        return AddedOptimizer(described, spec)
    return built


class EagerOptimizer(torch.optim.Optimizer):
    """Optimiser that is not compiled: torch's wrappers, which keep it out of graphs, import the
    compiler (a second).
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    grad_scale: Tensor | None = None
    """As in torch's fused optimisers: what gradients are divided by."""

    def bind(
        self, partitions: Partitions, facts: Mapping[str, ParameterFacts], num_workers: int
    ) -> None:
        """Learn which slices of which parameters `param_groups` hold now, before the first step.

        Every worker calls it. One that updates number by number does not ask.
        """


class EagerAdamW(EagerOptimizer, torch.optim.AdamW):
    """Torch's AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class AddedOptimizer(EagerOptimizer):
    """Optimiser of an add-on, number by number: the rule is
    `ditlab.spec.optimization.Optimizer.update`.

    As torch's fused optimisers do, divides gradients by `grad_scale`, and where `found_inf` is 1
    updates nothing. It reads that and the number of the step, for which it waits on a GPU.
    """

    average_of: Callable[[Tensor], Tensor] | None = None
    """Average of a flat that the rule updates too; None for none."""

    def __init__(self, groups: Sequence[dict[str, Any]], spec: Optimizer) -> None:
        wrong = [name for name in spec.moments if not name.startswith(MOMENT)]
        if wrong:
            raise UserError(
                f"optimizer.kind={spec.kind}: names of its moments must begin with {MOMENT}, "
                f"not {wrong}."
            )
        super().__init__(groups, {})
        self._spec = spec
        self.found_inf = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a group now, with the gradients that they hold."""
        flats = [
            (flat, group)
            for group in self.param_groups
            for flat in group["params"]
            if flat.grad is not None
        ]
        if not flats or self.found_inf > 0:
            return
        first, _ = flats[0]
        step = int(self.state[first]["step"]) + 1
        for flat, group in flats:
            self._update(flat, step, group["lr"], group["weight_decay"])

    def _update(self, flat: Tensor, step: int, lr: float, weight_decay: float) -> None:
        state = self.state[flat]
        state["step"].fill_(step)
        gradient = flat.grad
        assert gradient is not None
        if self.grad_scale is not None:
            gradient = gradient / self.grad_scale.to(gradient.device)
        weights = flat.detach().view(-1)
        tensors = {name: state[name].view(-1) for name in self._spec.moments}
        if self.average_of is not None:
            tensors["average"] = self.average_of(flat).view(-1)
        self._spec.decay(weights, tensors, step, lr * weight_decay)
        self._spec.update(weights, gradient.reshape(-1), tensors, step, lr)
