"""Stepper that measures chosen steps: each sample's loss before the update, its draws, norms by parameter and layer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.data.loading.transfer import MicroBatch
from ditlab.engine.update_norms import ParameterNorms
from ditlab.inputs.model_inputs import prepare_on_host
from ditlab.inputs.noise import KeyedNoise
from ditlab.training.plan import ForwardPass
from ditlab.training.stepping import Stepper

MOST_VALUES = 1
"""Values a sample of a draw that are kept as they are; of larger draws, the root mean square."""


@dataclass(frozen=True)
class Draw:
    """One draw of one sample."""

    name: str
    """Name by which the loss draws it: `time`, `noise`."""
    distribution: str
    """`uniform` or `normal`."""
    shape: tuple[int, ...]
    """Shape a sample."""
    value: float
    """The number itself, or the root mean square of a larger draw."""


@dataclass(frozen=True)
class RecordedNoise(KeyedNoise):
    """The numbers of `KeyedNoise`; each draw of a single sample goes to `record` too."""

    record: Callable[[Draw], None] = lambda draw: None

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1), float32, of a shape."""
        return self._recorded("uniform", name, shape, super().uniform(name, shape))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw N(0, 1), float32, of a shape."""
        return self._recorded("normal", name, shape, super().normal(name, shape))

    def _recorded(self, distribution: str, name: str, shape: Sequence[int], values: Tensor) -> Tensor:
        size = values.numel()
        value = values.item() if size == MOST_VALUES else torch.sqrt(values.square().mean()).item() if size else 0.0
        self.record(Draw(name, distribution, tuple(shape[1:]), value))
        return values


TIME_NAMES = ("t", "time", "timestep", "sigma")
"""Names of a network's argument that says how far a sample is noised."""


@dataclass(frozen=True)
class SampleLoss:
    """One sample of a step."""

    place: int
    """Place in the global batch."""
    row: int
    """Row of the training store."""
    loss: float
    """Weighted sum of its components, with the weights before the update."""
    components: dict[str, float]
    time: float | None
    """Time or noise level that the network was given, a mean over tokens that have one each; None for one without."""
    draws: tuple[Draw, ...]
    """Random numbers that its loss drew."""


@dataclass
class ObservedSteps:
    """Observations of one worker, by step (from 1)."""

    rows: dict[int, np.ndarray] = field(default_factory=dict)
    """Rows of the training store, int64 (samples of this worker,), in the order of its places."""
    indices: dict[int, np.ndarray] = field(default_factory=dict)
    """The same samples by their index in the training view."""
    samples: dict[int, list[SampleLoss]] = field(default_factory=dict)
    norms: dict[int, dict[str, ParameterNorms]] = field(default_factory=dict)
    """Alike on all workers."""
    clip_factors: dict[int, float] = field(default_factory=dict)
    """Number that clipping divided the gradient by, 1 for none."""
    digests: dict[int, int] = field(default_factory=dict)
    """Digest of the samples and draws of this worker's passes."""
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Logged by the first worker, under their MLflow names."""
    done: int = 0
    """Last step that is done."""


class ObservedStepper(Stepper):
    """Stepper that measures the steps `shown` (from 1) beside training them; the training itself is `Stepper`'s."""

    places: Sequence[int] | np.ndarray = ()
    """Places of this worker's samples in the global batch, micro-batch by micro-batch."""

    def __init__(self, *arguments: Any, shown: Collection[int], seen: ObservedSteps) -> None:
        super().__init__(*arguments)
        self._shown, self._seen = shown, seen

    def step(self, micro_batches: Sequence[MicroBatch], is_logged: bool) -> None:
        """Train one step, and measure it where it is to be shown."""
        number, seen = self._state.step + 1, self._seen
        if number in self._shown:
            self._measured_step(number, micro_batches, is_logged)
        else:
            super().step(micro_batches, is_logged)
        seen.digests[number], seen.done = self.samples, number

    def skip(self) -> None:
        """Count a step and its batch, without training on it."""
        super().skip()
        self._seen.done = self._state.step

    def _measured_step(self, number: int, micro_batches: Sequence[MicroBatch], is_logged: bool) -> None:
        self._seen.samples[number] = self._sample_losses(micro_batches, self._seen.rows[number])
        norms = self._state.engine.update_norms()
        with norms.watching():
            super().step(micro_batches, is_logged)
        self._seen.norms[number] = norms.read(self._rank.device)
        self._seen.clip_factors[number] = norms.clip_factor

    def _sample_losses(self, micro_batches: Sequence[MicroBatch], rows: np.ndarray) -> list[SampleLoss]:
        """Compute each sample's loss by itself, with its slice of the draws; all workers make equally many passes."""
        found = []
        size, engine = self._experiment.micro_size, self._state.engine
        with engine.measuring_losses(), _given_times(self._state.module.network) as times:
            for part in self._share.passes:
                for start in range(part.start, part.stop):
                    one = ForwardPass(part.number, start, start + 1, part.counts)
                    draws: list[Draw] = []
                    times.clear()
                    components = self._losses_of(one, micro_batches[part.number], draws)
                    if part.counts:
                        index = part.number * size + start
                        values = {name: float(value) for name, value in components.items()}
                        found.append(
                            SampleLoss(
                                int(self.places[index]), int(rows[index]), values.pop("loss"), values,
                                times[0] if times else None, tuple(draws),
                            )
                        )  # fmt: skip
        return found

    def _losses_of(self, one: ForwardPass, micro: MicroBatch, draws: list[Draw]) -> dict[str, Tensor]:
        rows = slice(one.start, one.stop)
        noise = RecordedNoise(**vars(self._noise(one)), record=draws.append)
        batch = self._inputs.prepare_batch(micro.rows, self._columns, rows=rows)
        batch |= prepare_on_host(self._state.objective, micro.rows, self._columns, self._inputs, noise, rows)
        return self._state.engine.losses(batch, noise)


@contextmanager
def _given_times(network: nn.Module) -> Iterator[list[float]]:
    """Yield a list to which each pass adds the mean time (or noise level) that it is given."""
    times: list[float] = []
    signature = inspect.signature(network.forward)
    name = next((each for each in TIME_NAMES if each in signature.parameters), None)

    def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        value = signature.bind_partial(*inputs, **named).arguments.get(name) if name else None
        if isinstance(value, Tensor):
            times.append(float(value.float().mean()))

    hook = network.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield times
    finally:
        hook.remove()


@dataclass(frozen=True)
class LayerNorms:
    """L2 norms of a layer's parameters together."""

    layer: str
    gradient: float
    """Before clipping."""
    update: float
    weight: float

    @property
    def ratio(self) -> float | None:
        """Norm of the update over that of the weights; None for weights of zero."""
        return self.update / self.weight if self.weight else None


def layers_of(norms: Mapping[str, ParameterNorms]) -> list[LayerNorms]:
    """Return norms by layer, in the order of the network: `blocks.3`, `final`, of the loss's own `objective...`."""
    groups: dict[str, list[ParameterNorms]] = {}
    for name in sorted(norms, key=_natural):
        groups.setdefault(layer_of(name), []).append(norms[name])
    return [
        LayerNorms(
            layer,
            *(
                math.sqrt(sum(getattr(each, kind) ** 2 for each in members))
                for kind in ("gradient", "update", "weight")
            ),
        )
        for layer, members in groups.items()
    ]


def layer_of(name: str) -> str:
    """Return the layer of a parameter: up to its first number, else up to its first module below the network."""
    parts = name.removeprefix("network.").split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    if number is not None:
        return ".".join(parts[: number + 1])
    return ".".join(parts[: 2 if parts[0] == "objective" else 1])


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which `blocks.10` comes behind `blocks.9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]
