"""Records of a step: what one worker of the engine was fed and held, and the workers' parts put together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

SliceKey = tuple[str, str, int]
"""(field, parameter, first value of the flattened parameter)."""


@dataclass(frozen=True)
class DrawKey:
    """Everything that a pass's random numbers depend on."""

    seed: int
    stream: str
    step: int
    micro_index: int
    micro_size: int
    start: int


@dataclass(frozen=True)
class RecordedPass:
    """One forward pass of a worker that counts."""

    key: DrawKey
    samples: list[str]
    """Digest of each sample as the network was fed with it."""
    total: float
    """Weighted sum of the components."""
    components: dict[str, float]


@dataclass
class RecordedStep:
    """One step of one worker."""

    step: int
    """From 0."""
    before: dict[SliceKey, Tensor]
    """State before it: `master`, moments, `ema`, `power_LENGTH`; flat float32 slices on the host."""
    scalars: dict[str, float]
    """State before it that is alike on all workers."""
    passes: list[RecordedPass] = field(default_factory=list)
    gradients: dict[SliceKey, Tensor] = field(default_factory=dict)
    """After reduction, unscaled, before clipping; empty where the optimiser took no step."""
    rates: dict[str, "GroupSetting"] = field(default_factory=dict)
    """Settings of the optimiser, by parameter."""
    clip_factor: float = 1.0
    """Number that clipping divides the gradient by."""
    after: dict[SliceKey, Tensor] = field(default_factory=dict)
    scalars_after: dict[str, float] = field(default_factory=dict)
    wrong_before: list[str] = field(default_factory=list)
    """Parameters that the network computes with before the step and that are not this worker's master weights, cast."""
    wrong_weights: list[str] = field(default_factory=list)
    """And after it."""
    computed: dict[str, str] = field(default_factory=dict)
    """Digest of each whole parameter as the network computes with it; empty with ZeRO-3, which shards them."""
    metrics: dict[str, float] = field(default_factory=dict)
    """As the loop reports them; on the first worker alone."""


@dataclass(frozen=True)
class GroupSetting:
    """Learning rate and weight decay that the optimiser stepped a parameter with."""

    lr: float
    weight_decay: float


@dataclass(frozen=True)
class WholeStep:
    """One step of all workers, with whole tensors by parameter, flat, float32."""

    step: int
    before: dict[str, dict[str, Tensor]]
    """State before the step, by field and parameter."""
    after: dict[str, dict[str, Tensor]]
    gradients: dict[str, Tensor]
    first: RecordedStep
    """The first worker's own record."""
    passes: list[RecordedPass]
    """Passes of all workers, in the order of their ranks."""
    wrong_before: list[str]
    """Parameters that some worker computes with and that are not the master weights, cast, before the step."""
    wrong_weights: list[str]
    """And after it."""
    disagreeing: list[str]
    """Parameters of which two workers hold the same slice with other gradients."""


def join_steps(parts: list[RecordedStep]) -> WholeStep:
    """Put the workers' parts of a step together."""
    first = parts[0]
    gradients, disagreeing = _joined(part.gradients for part in parts)
    before, _ = _joined(part.before for part in parts)
    after, _ = _joined(part.after for part in parts)
    wrong = {name for part in parts for name in [*part.wrong_weights, *_unlike(part.computed, first.computed)]}
    wrong_before = {name for part in parts for name in part.wrong_before}
    passes = [each for part in parts for each in part.passes]
    return WholeStep(
        first.step, before, after, gradients.get("gradient", {}), first, passes, sorted(wrong_before), sorted(wrong),
        disagreeing,
    )  # fmt: skip


def _unlike(one: Mapping[str, str], two: Mapping[str, str]) -> list[str]:
    return [name for name in one if one[name] != two.get(name)]


def _joined(parts: Iterable[Mapping[SliceKey, Tensor]]) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
    """Return whole flat tensors by field and parameter, and the parameters of which two parts differ."""
    slices: dict[tuple[str, str], dict[int, Tensor]] = {}
    differing: list[str] = []
    for part in parts:
        for (kind, name, start), values in part.items():
            held = slices.setdefault((kind, name), {})
            if start in held and held[start].shape == values.shape and not torch.equal(held[start], values):
                differing.append(name)
            if start not in held or held[start].numel() < values.numel():
                held[start] = values
    whole: dict[str, dict[str, Tensor]] = {}
    for (kind, name), held in slices.items():
        whole.setdefault(kind, {})[name] = torch.cat([held[start] for start in sorted(held)])
    return whole, sorted(set(differing))


def module_of(name: str) -> str:
    """Return the path of the module that a parameter belongs to."""
    return name.rpartition(".")[0]


def by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of each module, in the order given."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(module_of(name), []).append(name)
    return modules
