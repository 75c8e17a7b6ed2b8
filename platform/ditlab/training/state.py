"""Training state that a checkpoint holds: weights, moments, average, clipping statistics, buffers
and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from ditlab.averages import START
from ditlab.checkpoints.reader import CheckpointReader
from ditlab.checkpoints.shard import TensorKey
from ditlab.engine.deepspeed_internals import whole_shape
from ditlab.engine.distributed import Rank
from ditlab.engine.engine import Engine, TrainingModule
from ditlab.engine.phase_clock import PhaseClock
from ditlab.errors import UserError
from ditlab.inputs.noise import derived_seed
from ditlab.training.plan import TrainingRun, WorkerShare
from ditlab.training.reporting import ProgressMarker
from ditlab_models.finetuning import fine_tune


class SavedState(Protocol):
    """Whole tensors of a state by field and name."""

    def has(self, kind: str, /) -> bool:
        """Return True if any tensor of a field is there."""

    def read(self, kind: str, name: str, start: int, stop: int, /) -> Tensor:
        """Return values `start` to `stop` of a flattened tensor, float32."""


class TrainingState:
    """Network, objective and the engine that trains them, initialised from the experiment's
    seed.
    """

    def __init__(
        self,
        run: TrainingRun,
        rank: Rank,
        share: WorkerShare,
        marker: ProgressMarker,
        clock: PhaseClock,
    ) -> None:
        experiment = run.experiment
        self._rank = rank
        self._optimizer = experiment.optimizer.kind
        # its modules draw their weights
        torch.manual_seed(derived_seed(experiment.seed, "objective"))
        self.objective: Any = experiment.family.build_objective(
            experiment.objective, experiment.model, run.data.text
        )
        torch.manual_seed(derived_seed(experiment.seed, "weights"))
        network: Any = experiment.family.build_network(experiment.model)
        owners = {"network": network, "objective": self.objective.modules or nn.Module()}
        published = load_published(run, owners)
        fine_tune(
            network,
            self.objective.modules,
            experiment.training,
            partial(derived_seed, experiment.seed, "lora"),
        )
        self.module = TrainingModule(network, self.objective)
        """Module that the engine trains."""
        # Each pass counts, so that a worker that waits for a gradient is ahead of one that hangs.
        self.module.register_forward_hook(lambda *_: marker.tick())
        self.engine = Engine(
            self.module, experiment, rank, share.pass_size, len(share.passes), clock
        )
        self.network = RootedNetwork(self.engine, network, marker.tick)
        parameters, self.buffers = named_tensors(owners)
        self.shapes = {
            name: list(whole_shape(value)) for name, value in (parameters | self.buffers).items()
        }
        self.step = 0
        """Optimiser steps done."""
        self.position = 0
        """Samples taken from the training order."""
        self.draw_counts: dict[int, list[int]] = {}
        """`MixtureOrder.counts` by position, where they are known: those of the checkpoint that was
        loaded or saved.
        """
        if published:
            self.load_weights(published, "master")

    def tensors(self) -> Iterator[tuple[TensorKey, Tensor]]:
        """Iterate over this worker's share of all that is saved; together the workers' shares are
        the whole.
        """
        is_first = self._rank.is_first
        if self.engine.stage > 0 or is_first:  # at stage 0 every worker has it all
            yield from self.engine.state()
        if is_first:
            yield from (
                (("buffer", name, 0), each.detach().float().view(-1))
                for name, each in self.buffers.items()
            )

    def load(
        self,
        saved: SavedState,
        scalars: dict[str, float],
        step: int,
        position: int,
    ) -> None:
        """Load a saved state, written by any number of workers at any ZeRO stage.

        Raises UserError for a state of another optimiser.
        """
        states = self.engine.partitions.adam.state.values()
        moments = {name for state in states for name in state} - {"step"}
        has_momentum = saved.has("momentum")
        if has_momentum != ("momentum" in moments) or not all(map(saved.has, moments)):
            if has_momentum:
                written = "muon"
            elif saved.has("exp_avg"):
                written = "adamw"
            else:
                written = "another kind"
            raise UserError(
                f"optimizer.kind={self._optimizer} cannot go on from a checkpoint that "
                f"optimizer.kind={written} wrote; set optimizer.kind to {written}, or begin a "
                "new run from its weights with --from and --weights-only."
            )
        if not all(saved.has(field) for field in self.engine.averages.exponents):
            # they begin again
            scalars = {name: value for name, value in scalars.items() if name != START}
        self.engine.load_state(saved.read, scalars, saved.has("ema"))
        self._load_buffers(saved)
        self.step = step
        self.position = position

    def load_weights(
        self, saved: CheckpointReader | WholeTensors, kind: Literal["master", "ema"]
    ) -> None:
        """Load trained or averaged weights, and buffers; optimiser, average and position are those
        of a new run, and so are adapters that the other run lacks.
        """
        fresh = {
            (name, start): values.clone()
            for (field, name, start), values in self.engine.state()
            if field == "master" and name not in saved.shapes
        }

        def read(field: str, name: str, start: int, stop: int) -> Tensor:
            if field not in ("master", "frozen"):
                return torch.zeros(stop - start)
            own = fresh.get((name, start))
            if own is None:
                return saved.read(saved.field_of(name, kind), name, start, stop)
            return own

        scalars = {name: value for name, value in self.engine.scalars().items() if name != START}
        self.engine.load_state(read, scalars, has_ema=False)
        self._load_buffers(saved)

    def _load_buffers(self, saved: SavedState | WholeTensors) -> None:
        for name, buffer in self.buffers.items():
            buffer.copy_(saved.read("buffer", name, 0, buffer.numel()).reshape(buffer.shape))


@dataclass(frozen=True)
class CopiedState:
    """Copy in host memory of all that one worker holds of a training state; at ZeRO stage 0 each
    holds the whole.
    """

    tensors: dict[TensorKey, Tensor]
    """Values by (field, name, start): flat, float32, on the host."""
    scalars: dict[str, float]
    step: int
    position: int

    @classmethod
    def of(cls, state: TrainingState) -> CopiedState:
        """Copy a state into host memory."""
        tensors = {
            key: values.detach().to("cpu", copy=True) for key, values in state.engine.state()
        }
        for name, buffer in state.buffers.items():
            tensors["buffer", name, 0] = buffer.detach().float().reshape(-1).to("cpu", copy=True)
        return cls(tensors, state.engine.scalars(), state.step, state.position)

    def has(self, kind: str) -> bool:
        """Return True if any slice of a field is there."""
        return any(key[0] == kind for key in self.tensors)

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Return values `start` to `stop` of a flattened tensor, float32, as an engine of the same
        layout asks.
        """
        if start == stop:  # a worker's share of a frozen parameter that is smaller than the group
            return torch.empty(0)
        return self.tensors[kind, name, start][: stop - start]


@dataclass(frozen=True)
class WholeTensors:
    """Whole weights and buffers, float32, before an engine takes them."""

    values: Mapping[str, Tensor]

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shapes by name."""
        return {name: list(each.shape) for name, each in self.values.items()}

    def field_of(self, name: str, kind: str) -> str:
        """Return the field of a tensor, whatever its name."""
        return kind

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Return values `start` to `stop` of a flattened tensor."""
        return self.values[name].reshape(-1)[start:stop]


def load_published(run: TrainingRun, owners: Mapping[str, nn.Module]) -> WholeTensors | None:
    """Load the published weights that a run begins from; nothing for one that has a checkpoint, or
    fresh weights.

    Returns all tensors where the engine would begin with them rounded to the precision of training.
    """
    if run.weights is None or run.checkpoints.steps():
        return None
    run.weights.load(owners["network"])
    if run.experiment.training.precision == "fp32":
        return None
    parameters, buffers = named_tensors(owners)
    whole = parameters | buffers
    return WholeTensors({name: each.detach().clone() for name, each in whole.items()})


class RootedNetwork(nn.Module):
    """Network that samplers and objectives call, entered through the engine's root module."""

    _engine: Engine
    _network: nn.Module

    def __init__(self, engine: Engine, network: nn.Module, tick: Callable[[], None]) -> None:
        super().__init__()
        # Past nn.Module's registry: the parameters belong to the engine's module.
        self.__dict__["_engine"] = engine
        self.__dict__["_network"] = network
        self._tick = tick

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._tick()  # a sample grid may take longer than a worker may be silent
        return self._engine.network(*inputs, **named)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self._network.parameters(recurse)


def named_tensors(owners: Mapping[str, nn.Module]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters of all owners, and the buffers that belong into a checkpoint, by
    `owner.path`.
    """
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    for prefix, owner in owners.items():
        own = dict(owner.named_parameters())
        parameters |= {f"{prefix}.{name}": value for name, value in own.items()}
        state = owner.state_dict(keep_vars=True)
        buffers |= {f"{prefix}.{name}": value for name, value in state.items() if name not in own}
    return parameters, buffers
