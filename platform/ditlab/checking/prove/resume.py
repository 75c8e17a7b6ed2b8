"""A kill and a resume in the middle of an epoch, against the same run never stopped: equal to the bit.

The steps of both trainings are recorded by the run's own loop: what each took and gave on one worker.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.checking.prove.findings import ProofComparison
from ditlab.checking.prove.tolerances import equal_values, exact
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.store import CheckpointStore
from ditlab.engine.distributed import PeerLost, Rank
from ditlab.errors import RunFailed
from ditlab.progress import ignore
from ditlab.training.plan import RunPlan, TrainingRun
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.state import TrainingState
from ditlab.training.stepping import Stepper
from ditlab.training.trainer import Trainer

BEFOREHAND = "drawn beforehand, in the host's memory"
"""Key of tensors that the loss prepares from draws: small whole numbers may be equal by chance."""
RESUME = "resume"
"""Phase of these comparisons."""
DRAWS = "draws"
"""Phase of the comparison of draws with one another."""
MOST_STEPS = 4
"""Steps of the run that is never stopped, where it has as many."""
STATE = {
    "master": "master weights", "exp_avg": "first moments", "exp_avg_sq": "second moments", "momentum": "momentum",
    "ema": "average", "buffer": "buffers",
}  # fmt: skip
"""Fields of a state, in words."""
TIMES = ("train/samples_per_second", "train/data_wait")
"""Metrics that a clock decides."""


@dataclass(frozen=True)
class DigestedDraw:
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
    draws: dict[str, DigestedDraw] = field(default_factory=dict)
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
    def of(cls, state: TrainingState) -> CopiedState:
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


class RecordingNoise:
    """Noise source whose draws are recorded with their keys and values."""

    def __init__(self, noise: Any, number: int, record: dict[str, DigestedDraw]) -> None:
        """Record the draws of the `number`-th pass of a step."""
        self._noise, self._number, self._record = noise, number, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1), float32, of a shape."""
        return self._recorded(name, self._noise.uniform(name, shape))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw N(0, 1), float32, of a shape."""
        return self._recorded(name, self._noise.normal(name, shape))

    def _recorded(self, name: str, values: Tensor) -> Tensor:
        noise = self._noise
        key = f"{noise.stream}, step {noise.step}, micro-batch {noise.micro_index}, from sample {noise.start}"
        self._record[f"pass {self._number}: {name}"] = DigestedDraw(key, tensor_digest(values))
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
    at_end: Callable[[Trainer], None] = lambda trainer: None,
) -> ObservedTraining:
    """Train by the run's own loop until `stop_after` steps are done, from the newest checkpoint if there is one.

    It ends as by a stop request, with a checkpoint. `process_seed` sets the global generators of torch, numpy and
    Python, which another process would find elsewhere: no step may depend on them. `at_end` is called before the state
    is freed, on every worker.
    """
    watch = _Watch(stop_after, {field.name for field in run.experiment.batch_fields()})
    trainer = Trainer(run, rank, watch)
    try:
        for seed_generator in (torch.manual_seed, np.random.seed, random.seed):
            seed_generator(process_seed)
        trainer.resume()
        begun, failure = CopiedState.of(trainer.state), ""
        try:
            trainer.train()
        except (RunFailed, PeerLost) as error:
            failure = str(error)
        ended = CopiedState.of(trainer.state)
        if not failure:
            at_end(trainer)
    finally:
        trainer.close()
    trainer.release()
    return ObservedTraining(watch.steps, begun, ended, failure)


class _Watch(Reporter):
    """Observer that keeps what passes through a state's module and optimiser, and asks for a stop."""

    def __init__(self, stop_after: int, fields: Collection[str]) -> None:
        super().__init__(lambda: self._state.step >= stop_after, ignore, ProgressMarker())
        self.steps: dict[int, StepRecord] = {}
        self._fields = fields
        self._num_passes = self._num_counted = 0
        self._removable: list[Any] = []

    def attempt_begun(self, stepper: Stepper, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        self._state, self._counts = stepper.state, [part.counts for part in stepper.share.passes]
        self._removable = [
            self._state.module.register_forward_pre_hook(self._watch_pass),
            self._state.engine.partitions.adam.register_step_pre_hook(self._watch_update),
        ]

    def attempt_ended(self) -> None:
        for each in self._removable:
            each.remove()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
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
            record.draws[f"pass {self._num_counted}: {name}"] = DigestedDraw(BEFOREHAND, tensor_digest(batch[name]))
        return job, batch, RecordingNoise(noise, self._num_counted, record.draws)

    def _watch_update(self, optimizer: Any, *_: Any) -> None:
        rates = self._record().rates
        for group in optimizer.param_groups:
            if group["params"]:
                rates.append(group["lr"] / group["lr_factor"])


@dataclass(frozen=True)
class StopSteps:
    """Steps after which a run is stopped."""

    last: int
    """For good."""
    middle: int
    """For a resume."""


@dataclass(frozen=True)
class ResumedRun:
    """One run, never stopped, and the same stopped and resumed."""

    whole: ObservedTraining
    stopped: ObservedTraining
    resumed: ObservedTraining


def stop_steps(plan: RunPlan) -> StopSteps | None:
    """Return the steps after which a run is stopped, None for a run of one step.

    The resume is in the middle of an epoch where an epoch has several steps.
    """
    last = min(MOST_STEPS, plan.total_steps)
    if last < 2:
        return None
    middle = last // 2
    if plan.epoch_steps > 1 and middle % plan.epoch_steps == 0:
        middle = middle + 1 if middle + 1 < last else middle - 1
    return StopSteps(last, max(1, middle))


def train_resumed(run: TrainingRun, rank: Rank, folder: Path, whole: ObservedTraining, middle: int) -> ResumedRun:
    """Train to step `middle`, then go on from the checkpoint in a state built anew to where `whole` has ended."""
    own = replace(run, checkpoints=CheckpointStore.at(folder / "stopped"))
    stopped = observe_training(own, rank, middle, process_seed=1)
    resumed = observe_training(own, rank, whole.ended.step, process_seed=2)
    return ResumedRun(whole, stopped, resumed)


def compare_resume(runs: ResumedRun) -> Iterator[ProofComparison]:
    """Yield the comparisons of one worker: what was loaded, then the steps, then the state at the end."""
    yield from compare_states(runs.stopped.ended, runs.resumed.begun, "after loading")
    yield from _compare_steps(runs)
    failures = [f"{runs.resumed.failure}"] if runs.resumed.failure else []
    yield exact(RESUME, "trainings that ended early", len(failures), 1, "trainings", *failures)
    yield from compare_states(runs.whole.ended, runs.resumed.ended, f"after step {runs.whole.ended.step}")


def compare_states(one: CopiedState, two: CopiedState, when: str) -> Iterator[ProofComparison]:
    """Yield one comparison for each field of two states, naming the first tensor that differs; then the scalars."""
    every, both = {**one.tensors, **two.tensors}, one.tensors.keys() & two.tensors.keys()
    for kind in dict.fromkeys(key[0] for key in every):
        words, keys = STATE.get(kind, kind), [key for key in every if key[0] == kind]
        differing = [key for key in keys if key not in both or not equal_values(one.tensors[key], two.tensors[key])]
        where = [f"first in {key[1]}" for key in differing[:1]]
        yield exact(RESUME, f"{words} {when}", len(differing), len(keys), "tensors", *where)
    places = {"step": (one.step, two.step), "position": (one.position, two.position)}
    scalars = {name: (one.scalars.get(name), two.scalars.get(name)) for name in {**one.scalars, **two.scalars}}
    wrong = [f"{name} {first} and {second}" for name, (first, second) in (places | scalars).items() if first != second]
    yield exact(RESUME, f"counters {when}", len(wrong), len(places | scalars), "numbers", "; ".join(wrong))


def compare_draws(steps: Mapping[int, StepRecord]) -> ProofComparison:
    """Compare the draws of a training's steps and passes with one another: none may come again."""
    seen: dict[str, str] = {}
    again = []
    for number, record in sorted(steps.items()):
        for name, draw in record.draws.items():
            if draw.key != BEFOREHAND and draw.digest in seen:
                again.append(f"step {number}, {name}, is {seen[draw.digest]} again")
            seen.setdefault(draw.digest, f"step {number}, {name}")
    num = sum(len(record.draws) for record in steps.values())
    return exact(DRAWS, "draws that came before", len(again), num, "draws", *again[:1])


def compare_fields(run: TrainingRun, state: CopiedState) -> ProofComparison:
    """Compare the fields that a worker's part of a state holds with those that the spec asks for."""
    moments = ["momentum"] if run.experiment.optimizer.kind == "muon" else ["exp_avg", "exp_avg_sq"]
    wanted = ["master", *moments, *(["ema"] if run.experiment.training.ema else [])]
    missing = [STATE[field] for field in wanted if state.tensors and not any(key[0] == field for key in state.tensors)]
    return exact(RESUME, "parts of the state saved", len(missing), len(wanted), "parts", "; ".join(missing))


def _compare_steps(runs: ResumedRun) -> Iterator[ProofComparison]:
    """Yield the comparisons of what the steps after the resume took and gave."""
    steps = range(runs.stopped.ended.step + 1, runs.whole.ended.step + 1)
    parts = [(number, runs.whole.steps.get(number), runs.resumed.steps.get(number)) for number in steps]
    missing = [number for number, one, two in parts if one is None or two is None]
    yield exact(RESUME, "steps trained", len(missing), len(parts), "steps", *(f"step {n} lacks" for n in missing[:1]))
    pairs = [(number, one, two) for number, one, two in parts if one is not None and two is not None]
    earlier = {draw.digest: number for number, record in runs.whole.steps.items() for draw in record.draws.values()}
    places = {digest: number for number, record in runs.whole.steps.items() for digest in record.samples}
    samples, draws, rates, values = [], [], [], []
    for number, one, two in pairs:
        for place in range(max(len(one.samples), len(two.samples))):
            consumed = two.samples[place] if place < len(two.samples) else ""
            if one.samples[place : place + 1] != [consumed]:
                source = f", which the unbroken run consumed at step {places[consumed]}" if consumed in places else ""
                samples.append(f"step {number} consumed another sample at place {place + 1}{source}")
        for name in {**one.draws, **two.draws}:
            own = two.draws.get(name)
            if one.draws.get(name) != own:
                step = earlier.get(own.digest) if own else None
                source = f", those of step {step} again" if step not in (None, number) else ""
                draws.append(f"step {number} drew other numbers in {name}{source}")
        rates += [f"step {number}: {a} and {b}" for a, b in zip(one.rates, two.rates, strict=False) if a != b]
        for name in one.values:
            if name.startswith("train/") and name not in TIMES and not _equal(one.values[name], two.values.get(name)):
                values.append(f"{name} of step {number}: {one.values[name]} and {two.values.get(name)}")
    num_samples = sum(len(one.samples) for _, one, _ in pairs)
    yield exact(RESUME, "samples consumed", len(samples), num_samples, "samples", *samples[:1])
    yield exact(RESUME, "draws", len(draws), sum(len(one.draws) for _, one, _ in pairs), "draws", *draws[:1])
    yield exact(RESUME, "learning rates", len(rates), sum(len(one.rates) for _, one, _ in pairs), "rates", *rates[:1])
    num_values = sum(name.startswith("train/") for _, one, _ in pairs for name in one.values)
    if num_values:
        yield exact(RESUME, "losses", len(values), num_values, "values", *values[:1])


def _equal(one: float, two: float | None) -> bool:
    return two is not None and (one == two or (math.isnan(one) and math.isnan(two)))
