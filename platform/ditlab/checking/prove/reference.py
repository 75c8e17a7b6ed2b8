"""Reference of a step's loss and gradient: autograd on one micro-batch after the other, without an engine.

A plain network and objective hold a given state's weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from denoisers.contract import RetiringObjective
from ditlab.checking.prove.recording import DrawKey
from ditlab.checking.prove.resume import CopiedState, sample_digests
from ditlab.data.orders import training_order
from ditlab.engine.distributed import ControlChannel, Rank
from ditlab.inputs.model_inputs import ModelInputs, prepare_on_host
from ditlab.inputs.noise import KeyedNoise, derived_seed
from ditlab.training.plan import TrainingRun

SPREAD = 0.05
"""Standard deviation of the numbers that set an average apart from its weights."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class ReferenceModel:
    """Network and objective in one precision."""

    network: nn.Module
    objective: Any


def build_reference(run: TrainingRun, rank: Rank, weights: dict[str, Tensor], dtype: torch.dtype) -> ReferenceModel:
    """Build a run's network and objective again, in evaluation mode, with weights by name in `dtype`.

    `weights`: whole tensors, float32 or float64, named `network.path` and `objective.path`, buffers among them.
    """
    experiment = run.experiment
    with torch.random.fork_rng(devices=[]):
        objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, run.data.text)
        network: Any = experiment.family.build_network(experiment.model)
    owners = {"network": network, "objective": objective.modules or nn.Module()}
    with torch.no_grad():
        for prefix, owner in owners.items():
            owner.to(rank.device, dtype).eval()
            for name, value in owner.state_dict(keep_vars=True).items():
                value.copy_(weights[f"{prefix}.{name}"].view(value.shape))
    return ReferenceModel(network, objective)


def whole_weights(state: CopiedState, channel: ControlChannel, kind: str) -> dict[str, Tensor]:
    """Put the workers' slices of one kind (`master`, `ema`) together, flat tensors by name; buffers go with them."""
    slices: dict[str, dict[int, Tensor]] = {}
    for part in channel.gather({key: value for key, value in state.tensors.items() if key[0] in (kind, "buffer")}):
        assert isinstance(part, dict)
        for (_, name, start), values in part.items():
            slices.setdefault(name, {})[start] = values
    return {name: torch.cat([parts[start] for start in sorted(parts)]) for name, parts in slices.items()}


def set_apart(state: CopiedState, seed: int) -> CopiedState:
    """Return the state with an average that differs from the weights everywhere, and so in what a network gives.

    After a few steps of a warm-up the two are all but equal, and which of them was evaluated could not be told.
    """
    tensors = dict(state.tensors)
    for (field, name, start), values in state.tensors.items():
        if field == "ema":
            generator = torch.Generator().manual_seed(derived_seed(seed, "prove", "average", name))
            drawn = torch.randn(start + values.numel(), generator=generator)[start:]
            tensors[field, name, start] = state.tensors["master", name, start] + SPREAD * drawn
    return CopiedState(tensors, copy.copy(state.scalars), state.step, state.position)


@dataclass(frozen=True)
class ReferenceMicroBatch:
    """Samples of one forward pass, as spec, order and store have them, and the key of its draws."""

    raw: dict[str, Tensor]
    """Columns by name, in the store's dtype."""
    key: DrawKey
    samples: list[str]
    """Digest of each sample."""

    def noise(self, device: torch.device) -> KeyedNoise:
        """Return the source of the pass's random numbers."""
        return KeyedNoise(device=device, **vars(self.key))


@dataclass(frozen=True)
class ReferenceGradient:
    """Loss and gradient of one step in one precision."""

    gradients: dict[str, Tensor]
    """Mean over the step's samples, by parameter: flat, float64, on the host."""
    sizes: dict[str, float]
    """Mean over micro-batches of the norm of their own gradients, which may cancel in the mean; by parameter."""
    totals: list[float]
    """Weighted sum of the components, by micro-batch."""
    components: list[dict[str, float]]
    """Loss components of each micro-batch."""


class DoubleNoise:
    """Random numbers of another source, in float64."""

    def __init__(self, noise: KeyedNoise) -> None:
        self._noise = noise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return U[0, 1) of a shape."""
        return self._noise.uniform(name, shape).double()

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return N(0, 1) of a shape."""
        return self._noise.normal(name, shape).double()


class ReferenceSteps:
    """Reference of a run's steps on one process, with the whole global batch."""

    def __init__(self, run: TrainingRun, rank: Rank) -> None:
        self._run, self._rank = run, rank
        self._inputs = ModelInputs.from_experiment(run.experiment, run.data.train.columns, rank.device, home=run.home)

    def micro_batches(self, step: int) -> list[ReferenceMicroBatch]:
        """Return what step `step` (from 0) is to consume: consecutive samples of the order, and their keys.

        Numbers are drawn for a micro-batch of `batch.micro` samples, or for the whole batch where that is not set.
        """
        experiment, view = self._run.experiment, self._run.data.train
        size, unit = experiment.micro_size, experiment.batch.micro or experiment.batch.size
        order = training_order(experiment.data, self._run.data, experiment.batch.size, experiment.seed)
        places = order.batches(step, 1).reshape(-1)
        self._retire(step)
        found = []
        for first in range(0, experiment.batch.size, size):
            rows = places[first : first + size]
            raw = {field.name: view.gather(field.name, rows) for field in self._inputs.fields}
            key = DrawKey(experiment.seed, "train", step, first // unit, unit, first % unit)
            digests = sample_digests(self._batch(raw), self._inputs.names_read)
            found.append(ReferenceMicroBatch(raw, key, digests))
        return found

    def epoch(self, step: int) -> np.ndarray:
        """Return the samples of all steps so far of the epoch that a step is in, and of its own, by view index."""
        experiment = self._run.experiment
        order = training_order(experiment.data, self._run.data, experiment.batch.size, experiment.seed)
        first = step // order.batches_per_epoch * order.batches_per_epoch
        return order.batches(first, step + 1 - first).reshape(-1)

    def gradient(
        self,
        micro_batches: Sequence[ReferenceMicroBatch],
        weights: Mapping[str, Tensor],
        dtype: torch.dtype,
        scale: float = 1.0,
    ) -> ReferenceGradient:
        """Compute the mean gradient over all samples at whole `weights` by name, all arithmetic in `dtype`.

        `scale`: factor on the loss that is divided out of gradients again, for float16.
        """
        model = build_reference(self._run, self._rank, dict(weights), dtype)
        owners = {"network": model.network, "objective": model.objective.modules}
        parameters = {
            f"{prefix}.{name}": parameter
            for prefix, owner in owners.items()
            if owner is not None
            for name, parameter in owner.train().named_parameters()
        }
        sums: dict[str, Tensor] = {}
        sizes = dict.fromkeys(parameters, 0.0)
        found = ReferenceGradient({}, sizes, [], [])
        for micro in micro_batches:
            noise = micro.noise(self._rank.device)
            batch = self._batch(micro.raw)
            columns = self._run.data.train.columns
            batch |= prepare_on_host(model.objective, micro.raw, columns, self._inputs, noise)
            if dtype == torch.float64:
                batch = {name: each.double() if each.is_floating_point() else each for name, each in batch.items()}
            source = DoubleNoise(noise) if dtype == torch.float64 else noise
            components = model.objective.loss(model.network, batch, source)
            total = sum(model.objective.weights[name] * value for name, value in components.items())
            found.totals.append(float(total.detach()))
            found.components.append({name: float(value.detach()) for name, value in components.items()})
            gradients = torch.autograd.grad(
                total * scale / len(micro_batches), list(parameters.values()), allow_unused=True
            )
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    # In the precision's own arithmetic, as gradients accumulate.
                    sums[name] = gradient if name not in sums else sums[name] + gradient
                    sizes[name] += float(gradient.double().norm()) / scale
        for name, parameter in parameters.items():
            whole = sums.get(name, torch.zeros_like(parameter))
            found.gradients[name] = whole.detach().double().cpu().view(-1) / scale
        return found

    def _batch(self, raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self._inputs.prepare_batch(raw, self._run.data.train.columns)

    def _retire(self, step: int) -> None:
        """Skip the fields that the loss does not read any more at a step."""
        experiment = self._run.experiment
        with torch.random.fork_rng(devices=[]):
            objective = experiment.family.build_objective(experiment.objective, experiment.model, self._run.data.text)
        if isinstance(objective, RetiringObjective):
            self._inputs.retire(objective.retired_fields(step))
