"""All that a checkpoint holds, alive: weights, moments, average, clipping, buffers, and how far the run has come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from denoisers.contract import TextCodec
from ditlab.engine.distributed import Rank
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.inputs.noise import derived_seed
from ditlab.spec.experiment import Experiment
from ditlab.training.networks import RootedNetwork, named_parameters, persistent_buffers, whole_shape
from ditlab.training.progress_marker import ProgressMarker
from ditlab.training.shares import Share

Key = tuple[str, str, int]
"""(field, name, first value) of a piece of a flattened tensor."""


class SavedState(Protocol):
    """Where a state is read from: a checkpoint, or what another engine left."""

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Values `start` to `stop` of a flattened tensor, float32."""
        ...

    def has(self, kind: str) -> bool:
        """Whether any piece of a field is there."""
        ...


class TrainingState:
    """A network, its objective and the engine that trains them, from the experiment's seed on."""

    def __init__(
        self,
        experiment: Experiment,
        rank: Rank,
        share: Share,
        swap: Path,
        marker: ProgressMarker,
        text: TextCodec | None = None,
    ) -> None:
        self._rank = rank
        torch.manual_seed(derived_seed(experiment.seed, "objective"))  # its modules draw their weights
        self.objective: Any = experiment.family.build_objective(experiment.objective, experiment.model, text)
        torch.manual_seed(derived_seed(experiment.seed, "weights"))
        network: Any = experiment.family.build_network(experiment.model)
        module = TrainingModule(network, self.objective)
        module.register_forward_hook(lambda *_: marker.beat())  # so that who waits for a gradient is ahead of who hangs
        self.engine = Engine(module, experiment, rank, share.slice_size, len(share.slices), swap=swap)
        self.network = RootedNetwork(self.engine, network, marker.beat)
        owners = {"network": network, "objective": self.objective.modules or nn.Module()}
        self.buffers = dict(persistent_buffers(owners))
        named = [*named_parameters(owners), *self.buffers.items()]
        self.shapes = {name: list(whole_shape(value)) for name, value in named}
        self.step = 0
        """Optimiser steps done."""
        self.position = 0
        """Samples taken from the training order."""

    def tensors(self) -> Iterator[tuple[Key, Tensor]]:
        """This worker's share of all that is saved; together the workers' shares are the whole."""
        first = self._rank.is_first
        if self.engine.stage > 0 or first:  # at stage 0 every worker holds the same whole state
            for kind, piece, values in self.engine.state():
                yield (kind, piece.name, piece.start), values
        if first:
            for name, buffer in self.buffers.items():
                yield ("buffer", name, 0), buffer.detach().float().view(-1)

    def load(self, saved: SavedState, scalars: dict[str, float], step: int, position: int) -> None:
        """Takes up a saved state, whatever number of workers and ZeRO stage wrote it."""
        self.engine.load_state(saved.read, scalars, saved.has("ema"))
        for name, buffer in self.buffers.items():
            buffer.copy_(saved.read("buffer", name, 0, buffer.numel()).reshape(buffer.shape))
        self.step, self.position = step, position

    def leave(self) -> "LeftState":
        """Copies the whole state into host memory. One worker only: it holds the whole."""
        assert self._rank.world_size == 1
        held = {key: values.detach().to("cpu", copy=True) for key, values in self.tensors()}
        return HostState(held, self.engine.scalars(), self.step, self.position)

    def close(self) -> None:
        self.engine.close()


class HostState:
    """What an engine left for the next one."""

    def __init__(self, held: dict[Key, Tensor], scalars: dict[str, float], step: int, position: int) -> None:
        self._held = held
        self.scalars, self.step, self.position = scalars, step, position

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        return self._held[kind, name, 0][start:stop]

    def has(self, kind: str) -> bool:
        return any(key[0] == kind for key in self._held)
