"""Reference trainer of one file: what a spec says of a step, without an engine, in one process.

Loss and gradient are autograd's on one micro-batch after the other, random numbers those of the
spec's keys, and AdamW, Muon, clipping, averages and schedules are written as in their papers, in
float64: the rules that an ejected file trains by (`eject.rules`). The network with its roles and
the loss are the family's own: a mistake in them is one of the reference too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.data.stores.row_changes import RowChanges
from ditlab.inputs.noise import KeyedNoise, derived_seed
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import ClipSpec
from ditlab_addons.check.eject.rules import (
    CLIP_TINY,
    MOMENTS,
    clip_limit,
    ema_decay,
    muon_change,
    parameter_rates,
    power_share,
    rate_factor,
)
from ditlab_addons.check.eject.settings import UpdateSettings, update_settings
from ditlab_addons.check.eject.trainer import keyed_uniform
from ditlab_addons.check.tensor_digest import tensor_digest
from ditlab_models.contract import Objective, TextCodec
from ditlab_models.finetuning import fine_tune
from ditlab_models.parameters import ParameterRole, parameter_roles

UNITS = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}
"""Unit roundoff, relative: half of the distance of neighbouring numbers, of which weights have lost
one already.
"""
FLOAT32 = UNITS[torch.float32]
CPU = torch.device("cpu")
Whole = dict[str, Tensor]
"""Whole tensors by parameter, flat."""
Tensors = Mapping[str, Tensor]
"""Tensors by name."""


def joint_norm(parts: Iterable[Tensor]) -> float:
    """Return the L2 norm over all values of some tensors, summed in float64."""
    return math.hypot(*(float(each.double().norm()) for each in parts))


def change_sample(
    raw: dict[str, Tensor], place: int, change: RowChanges, seed: int, draw: int
) -> None:
    """Mirror the image at a place of a batch and choose a line of its caption; `draw`: its number
    in the run.
    """

    if "image" in raw and keyed_uniform("flip", seed, draw) < change.flip:
        raw["image"][place] = raw["image"][place].flip(-1)
    if "caption" in raw and change.one_caption:
        lines = bytes(each for each in raw["caption"][place].tolist() if each).split(b"\n")
        line = lines[int(keyed_uniform("caption", seed, draw) * len(lines))]
        padded = line.ljust(raw["caption"].shape[1], b"\0")
        raw["caption"][place] = torch.tensor(list(padded), dtype=raw["caption"].dtype)


@dataclass(frozen=True)
class RecordedNoise(KeyedNoise):
    """The numbers of `KeyedNoise`, recorded."""

    draws: dict[str, str] = field(default_factory=dict)
    """Digest of each draw so far, by name."""

    def _draw(self, distribution: Callable[..., Tensor], name: str, shape: Sequence[int]) -> Tensor:
        values = super()._draw(distribution, name, shape)
        self.draws[name] = tensor_digest(values)
        return values


@dataclass(frozen=True)
class ReferenceNoise(RecordedNoise):
    """Random numbers of a pass: a generator of its own for each (seed, stream, step, micro-batch,
    name).
    """

    dtype: torch.dtype = torch.float32
    """Precision in which the numbers are returned; their values are float32's in any."""

    def _draw(self, distribution: Callable[..., Tensor], name: str, shape: Sequence[int]) -> Tensor:
        generator = torch.Generator(self.device)
        generator.manual_seed(
            derived_seed(self.seed, self.stream, self.step, self.micro_index, name)
        )
        whole = distribution((self.micro_size, *shape[1:]), generator=generator, device=self.device)
        values = whole[self.start : self.start + shape[0]]
        self.draws[name] = tensor_digest(values)
        return values.to(self.dtype)


@dataclass(frozen=True)
class ParameterSettings:
    """How the spec has a parameter updated."""

    kind: ParameterRole
    shape: torch.Size
    lr: float
    """Learning rate, without the schedule's factor."""
    weight_decay: float
    is_orthogonalised: bool
    """True for Muon's own parameters, False for AdamW's."""

    @property
    def role(self) -> str:
        """Name of the role."""
        return self.kind.role


def parameter_settings(module: nn.Module, update: UpdateSettings) -> dict[str, ParameterSettings]:
    """Return the settings of each trained parameter by name."""
    roles = parameter_roles(module)
    parameters = dict(module.named_parameters())
    return {
        name: ParameterSettings(
            roles[name],
            parameters[name].shape,
            update.lr * rates.lr_factor,
            rates.weight_decay,
            rates.is_orthogonalised,
        )
        for name, rates in parameter_rates(module, update).items()
    }


@dataclass(frozen=True)
class ReferenceModel:
    """Network and objective in one precision."""

    network: nn.Module
    objective: Objective
    module: nn.Module
    """Both as one module, whose parameters are named `network.PATH` and `objective.PATH`."""


@dataclass(frozen=True)
class ReferenceGradient:
    """Loss and gradient of one step in one precision."""

    gradients: Whole
    """Mean over the step's samples, by parameter: flat, float64, on the host."""
    sizes: Whole
    """Mean over micro-batches of the norm of their own gradients, which may cancel in the mean; one
    number a parameter.
    """
    totals: list[float]
    """Weighted sum of the components, by micro-batch."""
    components: list[dict[str, float]]
    """Loss components of each micro-batch."""


@dataclass(frozen=True)
class ReferenceUpdate:
    """State after a step, by field (`master`, moments, averages) and parameter, and what its
    roundings are of.
    """

    values: dict[str, Whole] = field(default_factory=dict)
    """Flat, float64."""
    scales: dict[str, Whole] = field(default_factory=dict)
    """Magnitudes to which a float32 rounding of each value is relative; for `master`, that of its
    change.
    """

    def add(self, kind: str, name: str, value: Tensor, scale: Tensor) -> None:
        """Take in a parameter's new value of a field."""
        self.values.setdefault(kind, {})[name] = value
        self.scales.setdefault(kind, {})[name] = scale


class ReferenceTrainer:
    """Trainer without an engine or a state: each step is a function of that before it, by field and
    whole parameter.
    """

    def __init__(
        self,
        experiment: Experiment,
        total_steps: int,
        epoch_steps: int,
        device: torch.device = CPU,
        text: TextCodec | None = None,
    ) -> None:
        """Prepare a run of so many steps and steps an epoch; `text`: the data's codec, for families
        of text.
        """
        self.experiment = experiment
        self.spec = experiment.to_dict()
        self._total_steps = total_steps
        self._epoch_steps = epoch_steps
        self._device = device
        self._text = text
        self._models: dict[torch.dtype, ReferenceModel] = {}
        model = self.build()
        self._update = update_settings(experiment.optimizer)
        self.settings = parameter_settings(model.module, self._update)
        self.frozen = {
            name for name, each in model.module.named_parameters() if not each.requires_grad
        }
        """Parameters that no step changes."""
        self.fresh = {
            name: each.clone().reshape(-1) for name, each in model.module.state_dict().items()
        }
        """Weights and buffers that the seed gives, float32."""

    def build(self, dtype: torch.dtype = torch.float32) -> ReferenceModel:
        """Build network and objective with the weights of the experiment's seed."""
        experiment = self.experiment
        family = experiment.family
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(experiment.seed, "objective"))
            objective = family.build_objective(experiment.objective, experiment.model, self._text)
            torch.manual_seed(derived_seed(experiment.seed, "weights"))
            network: Any = family.build_network(experiment.model)
            fine_tune(
                network,
                objective.modules,
                experiment.training,
                partial(derived_seed, experiment.seed, "lora"),
            )
        module = nn.ModuleDict({"network": network})
        if objective.modules is not None:
            module["objective"] = objective.modules
        return ReferenceModel(network, objective, module.to(self._device, dtype))

    def model(self, weights: Tensors, dtype: torch.dtype, is_new: bool = False) -> ReferenceModel:
        """Return network and objective in training mode with whole `weights` by name; those not
        named are the seed's.

        One model of each precision serves all calls without `is_new`.
        """
        if not is_new and dtype not in self._models:
            self._models[dtype] = self.build(dtype)
        model = self.build(dtype) if is_new else self._models[dtype]
        with torch.no_grad():
            for name, tensor in model.module.state_dict(keep_vars=True).items():
                tensor.copy_(weights.get(name, self.fresh[name]).view(tensor.shape))
        model.module.train()
        return model

    def components(
        self, model: ReferenceModel, batch: Tensors, noise: ReferenceNoise
    ) -> dict[str, Tensor]:
        """Return the loss components of a batch, in the arithmetic of the model's parameters."""
        if next(model.network.parameters()).dtype == torch.float64:
            batch = {
                name: each.double() if each.is_floating_point() else each
                for name, each in batch.items()
            }
            noise = replace(noise, dtype=torch.float64)
        return dict(model.objective.loss(model.network, batch, noise))

    def total(self, components: Mapping[str, Any], left_out: Collection[str] = ()) -> Any:
        """Return the sum of components by the spec's weights; one that it does not name is only
        reported.
        """
        weights = self.spec["objective"]["weights"]
        return sum(
            weights.get(name, 0.0) * value
            for name, value in components.items()
            if name not in left_out
        )

    def gradient(
        self,
        passes: Sequence[tuple[Tensors, ReferenceNoise]],
        weights: Tensors,
        dtype: torch.dtype,
        scale: float = 1.0,
        left_out: Collection[str] = (),
    ) -> ReferenceGradient:
        """Compute the mean gradient over equally large passes (batch, noise) at whole `weights`,
        all in `dtype`.

        `scale`: factor on the loss that is divided out of gradients again, for float16. `left_out`:
        components that are not part of the loss here.
        """
        model = self.model(weights, dtype)
        parameters = {
            name: each for name, each in model.module.named_parameters() if each.requires_grad
        }
        sums = {name: torch.zeros_like(each) for name, each in parameters.items()}
        sizes = {name: torch.zeros(1, dtype=torch.float64) for name in parameters}
        totals = []
        found = []
        for batch, noise in passes:
            components = self.components(model, batch, noise)
            total = self.total(components, left_out)
            totals.append(float(total.detach()))
            found.append({name: float(value.detach()) for name, value in components.items()})
            own = torch.autograd.grad(
                total * scale / len(passes), [*parameters.values()], materialize_grads=True
            )
            for name, gradient in zip(parameters, own, strict=True):
                sums[name] += gradient  # in the precision's own arithmetic, as gradients accumulate
                sizes[name] += gradient.double().norm().cpu() / scale
        gradients = {name: each.double().cpu().reshape(-1) / scale for name, each in sums.items()}
        return ReferenceGradient(gradients, sizes, totals, found)

    def rates(self, steps: np.ndarray) -> np.ndarray:
        """Return the schedule's factor on the learning rate at steps (from 0)."""
        schedule = self.experiment.schedule
        return np.array(
            [
                rate_factor(schedule, step, self._total_steps, self._epoch_steps)
                for step in steps.tolist()
            ]
        )

    def update(
        self,
        step: int,
        number: int,
        before: Mapping[str, Whole],
        gradients: Tensors,
        after: Whole | None = None,
        kernel: torch.dtype = torch.float32,
        begun: int = 0,
    ) -> ReferenceUpdate:
        """Compute the state after step `step` (from 0), the `number`-th update (from 1), with a
        clipped gradient.

        Args:
            step: as schedule and exponential average count.
            number: as AdamW counts.
            before: state before, by field and parameter.
            gradients: whole, by parameter.
            after: weights that averages read; None: those computed here.
            kernel: precision of the engine's orthogonalisation, whose roundings are scales of
                Muon's change.
            begun: updates before averages of power-function profile began.
        """
        spec = self._update
        factor = float(self.rates(np.array([step]))[0])
        found = ReferenceUpdate()
        for name, own in self.settings.items():
            if name not in before["master"]:
                continue  # the engine does not train it, which is a finding of its own
            weights = before["master"][name].double()
            lr = own.lr * factor
            if name in gradients:
                gradient = gradients[name].double()
            else:
                gradient = torch.zeros_like(weights)
            state = {
                kind: before[kind][name].double()
                for kind in MOMENTS
                if name in before.get(kind, {})
            }
            if own.is_orthogonalised:
                change, moments, scale = muon(spec, own, gradient, state)
                rough, *_ = muon(spec, own, gradient, state, kernel)
                scale = scale + (change - rough).abs() / FLOAT32
            else:
                change, moments, scale = adamw(spec, gradient, state, number)
            for kind, (value, size) in moments.items():
                found.add(kind, name, value, size)
            decay = lr * own.weight_decay * weights
            found.add("master", name, weights - lr * change - decay, lr * scale + decay.abs())
        for kind, share in self.decays(step, number - begun).items():
            for name, values in before.get(kind, {}).items():
                old = values.double()
                new = (after or found.values["master"])[name].double()
                value = share * old + (1 - share) * new
                found.add(kind, name, value, value.abs() + (1 - share) * (new - old).abs())
        return found

    def decays(self, step: int, updates: int) -> dict[str, float]:
        """Return the decay of each average of the spec at a step (from 0) and update (from 1), by
        field.
        """
        training = self.spec["training"]
        found = {}
        if training["ema"]:
            found["ema"] = ema_decay(training["ema"]["decay"], step)
        if training["averages"]:
            for length in training["averages"]["lengths"]:
                found[f"power_{length:g}"] = 1 - power_share(length, max(1, updates))
        return found


Step = tuple[Tensor, dict[str, tuple[Tensor, Tensor]], Tensor]
"""Change that weights are moved against for a learning rate of 1; moments with their scales; the
change's scale.
"""


def adamw(spec: UpdateSettings, gradient: Tensor, state: Tensors, number: int) -> Step:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) as the `number`-th update,
    without its decay.
    """
    beta1, beta2 = spec.betas
    first = beta1 * state["exp_avg"] + (1 - beta1) * gradient
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient**2
    correction1 = 1 - beta1**number
    correction2 = 1 - beta2**number
    # Each moment is a sum of two terms; 1 - beta, in float32, has a rounding of 1.
    size1 = beta1 * state["exp_avg"].abs() + gradient.abs()
    size2 = state["exp_avg_sq"] + gradient**2
    rate = 1 / correction1 / ((second / correction2).sqrt() + spec.eps)
    change = rate * first
    tiny = torch.finfo(torch.float64).tiny
    scale = rate * size1 + change.abs() * size2 / (2 * second).clamp(min=tiny)
    # 1 - beta^n has a rounding of 1 too, and so 1 / (1 - beta^n) roundings of itself.
    scale = scale + change.abs() * (1 / correction1 + 1 / correction2)
    return change, {"exp_avg": (first, size1), "exp_avg_sq": (second, size2)}, scale


def muon(
    spec: UpdateSettings,
    own: ParameterSettings,
    gradient: Tensor,
    state: Tensors,
    dtype: torch.dtype = torch.float64,
) -> Step:
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) of one parameter.

    `dtype`: that of the iterations, whose roundings they enlarge.
    """
    momentum = spec.momentum * state["momentum"]
    followed = momentum + gradient
    direction = gradient + spec.momentum * followed if spec.nesterov else followed
    orthogonal, factor = muon_change(spec, own.kind, direction.view(own.shape), dtype)
    change = factor * orthogonal.reshape(-1)
    return change, {"momentum": (followed, momentum.abs() + gradient.abs())}, change.abs()


def clip(
    spec: ClipSpec, norm: float, statistics: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Return the number that a gradient of this norm is divided by, and the statistics of norms
    after it.
    """
    limit, found = clip_limit(spec, norm, statistics)
    return max(1.0, (norm + CLIP_TINY) / limit), found
