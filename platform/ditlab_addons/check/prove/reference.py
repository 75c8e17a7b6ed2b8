"""Reference trainer of one file: what a spec says of a step, without an engine, in one process.

Loss and gradient are autograd's on one micro-batch after the other, random numbers those of the
spec's keys, and AdamW, Muon, clipping, averages and schedules are written as in their papers, in
float64. Settings are read from the spec as written (`Experiment.to_dict`). The network with its
roles and the loss are the family's own: a mistake in them is one of the reference too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.data.stores.row_changes import RowChanges
from ditlab.inputs.noise import KeyedNoise, derived_seed
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import Objective, TextCodec
from ditlab_models.finetuning import fine_tune, matches
from ditlab_models.parameters import parameter_roles

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
CLIP_TINY = 1e-6
"""Added to the norm that clipping divides by, as in torch.nn.utils.clip_grad_norm_."""
Whole = dict[str, Tensor]
"""Whole tensors by parameter, flat."""
Tensors = Mapping[str, Tensor]
"""Tensors by name."""
Section = Mapping[str, Any]
"""A section of a resolved spec."""


def tensor_digest(values: Tensor) -> str:
    """Return a digest of a tensor's dtype and bytes."""
    raw = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=8, person=str(values.dtype)[-16:].encode()).hexdigest()


def joint_norm(parts: Iterable[Tensor]) -> float:
    """Return the L2 norm over all values of some tensors, summed in float64."""
    return math.hypot(*(float(each.double().norm()) for each in parts))


def change_sample(
    raw: dict[str, Tensor], place: int, change: RowChanges, seed: int, draw: int
) -> None:
    """Mirror the image at a place of a batch and choose a line of its caption; `draw`: its number
    in the run.
    """

    def uniform(name: str) -> float:
        digest = hashlib.blake2b(f"ditlab.{name}/{seed}".encode(), digest_size=8).digest()
        word = (draw * 0x9E3779B97F4A7C15 + int.from_bytes(digest, "little")) % 2**64  # SplitMix64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return ((word ^ word >> 31) >> 11) / 2**53

    if "image" in raw and uniform("flip") < change.flip:
        raw["image"][place] = raw["image"][place].flip(-1)
    if "caption" in raw and change.one_caption:
        lines = bytes(each for each in raw["caption"][place].tolist() if each).split(b"\n")
        line = lines[int(uniform("caption") * len(lines))]
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

    role: str
    shape: torch.Size
    lr: float
    """Learning rate, without the schedule's factor."""
    weight_decay: float
    is_orthogonalised: bool
    """True for Muon's own parameters, False for AdamW's."""
    num_parts: int
    is_transposed: bool
    """Both as in `ditlab_models.parameters.ParameterRole`."""


def parameter_settings(module: nn.Module, optimizer: Section) -> dict[str, ParameterSettings]:
    """Return the settings of each trained parameter by name: its role, then the fields `lr`,
    `adamw_lr`, `lr_factors`, `lr_patterns`, `weight_decay` and `no_decay` of the optimiser's
    section."""
    roles = parameter_roles(module)
    found = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        role, num_parts, is_transposed = astuple(roles[name])
        is_muon = optimizer["kind"] == "muon" and role in ("matrix", "convolution")
        lr = optimizer["lr"]
        if not is_muon:
            lr = optimizer.get("adamw_lr") or lr
        for pattern, factor in optimizer["lr_patterns"].items():
            if matches(pattern, name.removeprefix("network.")):
                lr *= factor
        lr *= optimizer["lr_factors"][role]
        decay = 0.0 if role in optimizer["no_decay"] else optimizer["weight_decay"]
        found[name] = ParameterSettings(
            role, parameter.shape, lr, decay, is_muon, num_parts, is_transposed
        )
    return found


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
        self.settings = parameter_settings(model.module, self.spec["optimizer"])
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
        return schedule_factors(self.spec["schedule"], steps, self._total_steps, self._epoch_steps)

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
        spec = self.spec["optimizer"]
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
            found["ema"] = min(training["ema"]["decay"], (1 + step) / (10 + step))
        if training["averages"]:
            for length in training["averages"]["lengths"]:
                found[f"power_{length:g}"] = power_decay(length, max(1, updates))
        return found


MOMENTS = ("exp_avg", "exp_avg_sq", "momentum")
"""Fields of a state that optimisers keep."""
Step = tuple[Tensor, dict[str, tuple[Tensor, Tensor]], Tensor]
"""Change that weights are moved against for a learning rate of 1; moments with their scales; the
change's scale.
"""


def adamw(spec: Section, gradient: Tensor, state: Tensors, number: int) -> Step:
    """AdamW (Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2) as the `number`-th update,
    without its decay.
    """
    beta1, beta2 = spec["betas"]
    first = beta1 * state["exp_avg"] + (1 - beta1) * gradient
    second = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient**2
    correction1 = 1 - beta1**number
    correction2 = 1 - beta2**number
    # Each moment is a sum of two terms; 1 - beta, in float32, has a rounding of 1.
    size1 = beta1 * state["exp_avg"].abs() + gradient.abs()
    size2 = state["exp_avg_sq"] + gradient**2
    rate = 1 / correction1 / ((second / correction2).sqrt() + spec["eps"])
    change = rate * first
    tiny = torch.finfo(torch.float64).tiny
    scale = rate * size1 + change.abs() * size2 / (2 * second).clamp(min=tiny)
    # 1 - beta^n has a rounding of 1 too, and so 1 / (1 - beta^n) roundings of itself.
    scale = scale + change.abs() * (1 / correction1 + 1 / correction2)
    return change, {"exp_avg": (first, size1), "exp_avg_sq": (second, size2)}, scale


def muon(
    spec: Section,
    own: ParameterSettings,
    gradient: Tensor,
    state: Tensors,
    dtype: torch.dtype = torch.float64,
) -> Step:
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) of one parameter, its matrices
    one at a time.

    `dtype`: that of the iterations, whose roundings they enlarge. `scale: rms` is that of Liu et
    al. 2025, arXiv:2502.16982, eq. 4.
    """
    beta = spec["momentum"]
    momentum = beta * state["momentum"]
    followed = momentum + gradient
    direction = gradient + beta * followed if spec["nesterov"] else followed
    turned = direction.view(own.shape)
    if own.is_transposed:
        turned = turned.transpose(0, 1)
    changes = []
    for matrix in turned.flatten(1).chunk(own.num_parts):
        rows, columns = matrix.shape
        scale = math.sqrt(max(1, rows / columns))
        if spec["scale"] == "rms":
            scale = 0.2 * math.sqrt(max(rows, columns))
        changes.append(scale * orthogonalise(matrix, dtype))
    whole = torch.cat(changes).view(turned.shape)
    if own.is_transposed:
        whole = whole.transpose(0, 1)
    change = whole.reshape(-1)
    return change, {"momentum": (followed, momentum.abs() + gradient.abs())}, change.abs()


def orthogonalise(matrix: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The published quintic iteration, five times, on one matrix (rows, columns); the result is
    float64.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = (wide / (wide.norm() + 1e-7)).to(dtype)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    x = x.double()
    return x if wide is matrix else x.T


def clip(
    spec: Section, norm: float, statistics: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Return the number that a gradient of this norm is divided by, and the statistics of norms
    after it.

    By a fixed norm (Pascanu et al. 2013, arXiv:1211.5063), by z-score with reciprocal clipping
    (ZClip: Kumar et al. 2025, arXiv:2504.02507, algorithm 1), or by ratio to a moving average.
    """
    if spec["kind"] == "none":
        return 1.0, {}
    if spec["kind"] == "norm":
        return max(1.0, (norm + CLIP_TINY) / spec["max_norm"]), {}
    count = statistics.get("clip.count", 0.0)
    mean = statistics.get("clip.mean", 0.0)
    variance = statistics.get("clip.variance", 0.0)
    decay = spec["decay"]
    limit = math.inf
    if spec["kind"] == "zclip" and count < spec["warmup"]:
        # The mean and population variance of all norms so far, this one with them.
        total = count * mean + norm
        squares = count * (variance + mean**2) + norm**2
        count += 1
        mean = total / count
        variance = squares / count - mean**2
    elif spec["kind"] == "zclip":
        away = norm - mean
        spread = spec["z"] * math.sqrt(variance)
        if away > spread:
            limit = mean + spread**2 / away
        seen = min(norm, limit)
        mean = decay * mean + (1 - decay) * seen
        variance = decay * variance + (1 - decay) * (seen - mean) ** 2
    else:
        if count:
            limit = spec["ratio"] * mean
            mean = decay * mean + (1 - decay) * min(norm, limit)
        else:
            mean = norm
        count = 1.0
    if spec.get("max_norm") is not None:
        limit = min(limit, spec["max_norm"])
    found = {"clip.count": count, "clip.mean": mean, "clip.variance": variance}
    return max(1.0, (norm + CLIP_TINY) / limit), found


def power_decay(length: float, updates: int) -> float:
    """Return beta of the average of power-function profile of a relative length after `updates`
    updates (from 1).

    Karras et al. 2024, arXiv:2312.02696, eq. 2 and appendix C: beta = (1 - 1/t)^(gamma + 1), where
    the length is the profile's standard deviation, sqrt((gamma + 1) / ((gamma + 2)^2 (gamma + 3))),
    solved for gamma by bracketing.
    """
    from scipy.optimize import brentq  # takes 0.2 s, for which no replay waits

    gamma = brentq(
        lambda gamma: math.sqrt((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3))) - length, 0.0, 1e6
    )
    return float((1 - 1 / updates) ** (gamma + 1))


def schedule_factors(spec: Section, steps: np.ndarray, total: int, epoch_steps: int) -> np.ndarray:
    """Return the factor of a schedule at steps (from 0) of `total`, written as a formula over all
    steps at once.
    """
    n = steps.astype(np.float64)

    def half_wave(
        phase: np.ndarray, peak: np.ndarray | float, valley: np.ndarray | float
    ) -> np.ndarray:
        found: np.ndarray = valley * np.sin(phase / 2) ** 2 + peak * np.cos(phase / 2) ** 2
        return found

    if spec["kind"] == "stepped_cosine_restart":
        cycle = spec["cycle"] or epoch_steps
        number, place = np.divmod(n, cycle)
        peak = np.power(spec["decay"], number)
        valley = np.maximum(spec["floor"], spec["valley"] * peak)
        return half_wave(np.pi * place / cycle, np.maximum(spec["floor"], peak), valley)
    if spec["warmup_epochs"]:
        warmup = round(spec["warmup_epochs"] * epoch_steps)
    else:
        warmup = spec["warmup"]
    rise = np.minimum(1.0, (n + 1) / max(1, warmup))
    if spec["kind"] == "constant":
        return rise
    if spec["kind"] == "warmup_stable_decay":
        start = total if spec["decay_start"] is None else spec["decay_start"]
        done = np.clip((n + 1 - start) / max(1, total - start), 0, 1)
        lost = np.power(done, 0.5 if spec["shape"] == "sqrt" else 1.0)
        return np.minimum(rise, 1 - (1 - spec["final"]) * lost)
    phase = np.pi * np.clip((n - warmup) / max(1, total - 1 - warmup), 0, 1)
    return np.where(steps < warmup, rise, half_wave(phase, 1.0, spec["final"]))
