"""Record of what a training's steps took and gave on one worker, by the run's own loop."""

import hashlib
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.checkpoints.shard import TensorKey
from ditlab.engine.distributed import PeerLost, Rank
from ditlab.errors import RunFailed
from ditlab.inputs.model_inputs import ignore
from ditlab.training.plan import TrainingRun, WorkerShare, worker_share
from ditlab.training.reporting import ProgressMarker, SilentReporter
from ditlab.training.state import TrainingState
from ditlab.training.trainer import Worker

BEFOREHAND = "drawn beforehand, in the host's memory"
"""Key of tensors that the loss prepares from draws: small whole numbers may be equal by chance."""


@dataclass(frozen=True)
class WitnessedDraw:
    """One draw of one pass."""

    key: str
    """All that its numbers depend on, in words."""
    digest: str
    """Digest of the values."""


@dataclass
class StepRecord:
    """One step of one worker."""

    samples: list[str] = field(default_factory=list)
    """Digest of each sample that the loss was given, in order."""
    draws: dict[str, WitnessedDraw] = field(default_factory=dict)
    """Draws by pass and name."""
    rates: list[float] = field(default_factory=list)
    """Learning rate that each group of the optimiser was stepped with, without the group's own factor."""
    values: dict[str, float] = field(default_factory=dict)
    """Metrics that the loop reports, by name; on the first worker alone."""


@dataclass(frozen=True)
class CopiedState:
    """Copy of all that one worker holds of a training state; at ZeRO stage 0 each holds the whole."""

    tensors: dict[TensorKey, Tensor]
    """Values by (field, name, start)."""
    scalars: dict[str, float]
    step: int
    position: int

    @classmethod
    def of(cls, state: TrainingState) -> "CopiedState":
        """Copy a state into host memory."""
        tensors = {key: values.detach().to("cpu", copy=True) for key, values in state.engine.state()}
        for name, buffer in state.buffers.items():
            tensors["buffer", name, 0] = buffer.detach().float().view(-1).to("cpu", copy=True)
        return cls(tensors, state.engine.scalars(), state.step, state.position)


@dataclass(frozen=True)
class ObservedTraining:
    """A training that was watched from its beginning or resume to its stop."""

    steps: dict[int, StepRecord]
    """Records by number of the step (from 1)."""
    begun: CopiedState
    """State before its first step: fresh, or as it was resumed."""
    ended: CopiedState
    """State after its last step."""
    failure: str = ""
    """Error that ended it before its stop; empty where none did."""


class WitnessedNoise:
    """Noise source whose draws are recorded with their keys and values."""

    def __init__(self, noise: Any, number: int, record: dict[str, WitnessedDraw]) -> None:
        """Record the draws of the `number`-th pass of a step."""
        self._noise, self._number, self._record = noise, number, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1), float32, of a shape."""
        return self._witness(name, self._noise.uniform(name, shape))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw N(0, 1), float32, of a shape."""
        return self._witness(name, self._noise.normal(name, shape))

    def _witness(self, name: str, values: Tensor) -> Tensor:
        noise = self._noise
        key = f"{noise.stream}, step {noise.step}, micro-batch {noise.micro_index}, from sample {noise.start}"
        self._record[f"pass {self._number}: {name}"] = WitnessedDraw(key, tensor_digest(values))
        return values


def tensor_digest(values: Tensor) -> str:
    """Return a digest of a tensor's shape, dtype and bytes."""
    plain = values.detach().cpu().contiguous()
    raw = plain.view(torch.uint8).numpy().tobytes() if plain.numel() and plain.ndim else repr(plain.tolist()).encode()
    return hashlib.blake2b(raw, digest_size=8, person=str(plain.dtype)[-16:].encode()).hexdigest()


def sample_digests(batch: Mapping[str, Tensor], names: Collection[str]) -> list[str]:
    """Return a digest of each sample of a prepared batch, over the named fields."""
    fields = [batch[name].detach().cpu() for name in sorted(names) if name in batch]
    return [":".join(tensor_digest(row.reshape(-1)) for row in rows) for rows in zip(*fields, strict=True)]


def observe_training(
    run: TrainingRun,
    rank: Rank,
    stop_after: int,
    process_seed: int = 0,
    at_end: Callable[[Worker], None] = lambda worker: None,
) -> ObservedTraining:
    """Train by the run's own loop until `stop_after` steps are done, from the newest checkpoint if there is one.

    It ends as by a stop request, with a checkpoint. `process_seed` sets the global generators of torch, numpy and
    Python, which another process would find elsewhere: no step may depend on them. `at_end` is called before the state
    is freed, on every worker.
    """
    watch = _Watch(stop_after, {field.name for field in run.experiment.batch_fields()})
    reporter = SilentReporter(watch.should_stop, ignore, ProgressMarker())
    reporter.metrics = watch.take_metrics
    worker = Worker(run, rank, reporter)
    try:
        for seed_generator in (torch.manual_seed, np.random.seed, random.seed):
            seed_generator(process_seed)
        worker.resume()
        watch.begin(worker.state, [part.counts for part in _share(run, rank).passes])
        begun, failure = CopiedState.of(worker.state), ""
        try:
            worker.run()
        except (RunFailed, PeerLost) as error:
            failure = str(error)
        watch.end()
        ended = CopiedState.of(worker.state)
        if not failure:
            at_end(worker)
    finally:
        worker.close()
    worker.release()
    return ObservedTraining(watch.steps, begun, ended, failure)


def _share(run: TrainingRun, rank: Rank) -> WorkerShare:
    experiment, halvings = run.experiment, run.memory.halvings
    return worker_share(experiment.num_micro, experiment.micro_size, rank.rank, rank.world_size, halvings)


class _Watch:
    """Hooks around a state's module and optimiser that keep what passes."""

    def __init__(self, stop_after: int, fields: Collection[str]) -> None:
        self.steps: dict[int, StepRecord] = {}
        self._stop_after, self._fields = stop_after, fields
        self._num_passes = self._num_counted = 0
        self._hooks: list[Any] = []

    def begin(self, state: TrainingState, counts: Sequence[bool]) -> None:
        """Watch a state's passes; `counts`: for each of a step, whether it counts."""
        self._state, self._counts = state, counts
        self._hooks = [
            state.module.register_forward_pre_hook(self._watch_pass),
            state.engine.partitions.adam.register_step_pre_hook(self._watch_update),
        ]

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def should_stop(self) -> bool:
        return self._state.step >= self._stop_after

    def take_metrics(self, step: int, values: Mapping[str, float]) -> None:
        if step in self.steps:
            self.steps[step].values |= values

    def _record(self) -> StepRecord:
        step = self._state.step + 1
        if step not in self.steps:
            self.steps[step] = StepRecord()
            self._num_passes = self._num_counted = 0
        return self.steps[step]

    def _watch_pass(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        job, *rest = inputs
        if job != "loss" or not torch.is_grad_enabled():
            return None
        batch, noise = rest
        record = self._record()
        self._num_passes += 1
        if not all(self._counts[self._num_passes - 1 : self._num_passes]):
            return None  # it keeps step with workers of one micro-batch more, and draws what the last one drew
        self._num_counted += 1
        record.samples += sample_digests(batch, self._fields)
        for name in batch.keys() - self._fields:  # what the loss draws beforehand, in the host's memory
            record.draws[f"pass {self._num_counted}: {name}"] = WitnessedDraw(BEFOREHAND, tensor_digest(batch[name]))
        return job, batch, WitnessedNoise(noise, self._num_counted, record.draws)

    def _watch_update(self, optimizer: Any, *_: Any) -> None:
        rates = self._record().rates
        for group in optimizer.param_groups:
            if group["params"]:
                rates.append(group["lr"] / group["lr_factor"])
