"""Observer of a replay's steps: each sample's loss before the update, its draws, norms by parameter and layer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ditlab.data.loading.loader import WorkerBatches
from ditlab.data.loading.transfer import MicroBatch
from ditlab.engine.update_norms import ParameterNorms, UpdateNorms
from ditlab.inputs.noise import KeyedNoise
from ditlab.training.hooks import ConsumedPass
from ditlab.training.plan import ForwardPass
from ditlab.training.receipts import passes_digest
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.stepping import Stepper

MOST_VALUES = 1
"""Values a sample of a draw that are kept as they are; of larger draws, the root mean square."""
SPEEDS = ("train/samples_per_second", "train/data_wait")
"""Metrics of the replay's own speed."""
TIME_NAMES = ("t", "time", "timestep", "sigma")
"""Names of a network's argument that says how far a sample is noised."""


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
    """Index of each row's sample in the training view, in the shape of `rows`."""
    samples: dict[int, list[SampleLoss]] = field(default_factory=dict)
    norms: dict[int, dict[str, ParameterNorms]] = field(default_factory=dict)
    """Alike on all workers."""
    clip_factors: dict[int, float] = field(default_factory=dict)
    """Number that clipping divided the gradient by, 1 for none."""
    digests: dict[int, int] = field(default_factory=dict)
    """Digest of the samples and draws of this worker's passes."""
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Logged by the first worker, under their MLflow names."""


class StepObserver(Reporter):
    """Observer of a replay: measures the steps `shown` (from 1) beside their training, and keeps what is logged."""

    def __init__(self, shown: Collection[int], steps: range, seen: ObservedSteps) -> None:
        """Observe `steps` (from 1) into `seen`."""
        super().__init__(lambda: False, lambda message: None, ProgressMarker())
        self._shown, self._steps, self._seen = shown, steps, seen
        self._watching = ExitStack()
        self._norms: UpdateNorms | None = None

    def attempt_begun(self, stepper: Stepper, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        self._stepper = stepper

    def loader_opened(self, batches: WorkerBatches, position: int) -> None:
        size, done = batches.order.batch_size, self._stepper.state.step
        self._places = batches.places
        for step in self._steps:
            number = position // size + step - 1 - done
            self._seen.indices[step] = batches.order.batches(number, 1, batches.places).reshape(-1)
            self._seen.rows[step] = batches.view.rows[self._seen.indices[step]]

    def step_begun(self, step: int, micro_batches: Sequence[MicroBatch]) -> None:
        if step in self._shown:
            self._seen.samples[step] = self._sample_losses(micro_batches, self._seen.rows[step])
            self._norms = self._stepper.state.engine.update_norms()
            self._watching.enter_context(self._norms.watching())

    def consumed(self, step: int, passes: Sequence[ConsumedPass]) -> None:
        if passes:
            self._seen.digests[step] = passes_digest(passes)

    def step_ended(self, step: int) -> None:
        if norms := self._norms:
            self.attempt_ended()
            self._seen.norms[step] = norms.read(self._stepper.rank.device)
            self._seen.clip_factors[step] = norms.clip_factor

    def attempt_ended(self) -> None:
        self._watching.close()
        self._norms = None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        trained = {name: value for name, value in values.items() if name.startswith("train/") and name not in SPEEDS}
        self._seen.metrics.setdefault(step, {}).update(trained)

    def _sample_losses(self, micro_batches: Sequence[MicroBatch], rows: np.ndarray) -> list[SampleLoss]:
        """Compute each sample's loss by itself, with its slice of the draws; all workers make equally many passes."""
        found = []
        stepper, state = self._stepper, self._stepper.state
        with state.engine.measuring_losses(), _given_times(state.module.network) as times:
            for part in stepper.share.passes:
                micro = micro_batches[part.number]
                for start in range(part.start, part.stop):
                    one = ForwardPass(part.number, start, start + 1, part.counts)
                    draws: list[Draw] = []
                    times.clear()
                    noise = RecordedNoise(**vars(stepper.noise(one)), record=draws.append)
                    components = state.engine.losses(stepper.batch(one, micro, noise), noise)
                    if part.counts:
                        index = part.number * len(micro.row_ids) + start
                        values = {name: float(value) for name, value in components.items()}
                        found.append(
                            SampleLoss(
                                int(self._places[index]), int(rows[index]), values.pop("loss"), values,
                                times[0] if times else None, tuple(draws),
                            )
                        )  # fmt: skip
        return found


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
