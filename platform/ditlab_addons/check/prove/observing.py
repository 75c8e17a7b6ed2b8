"""A step of the real training loop as a hook sees it: its inputs and its results. The hook changes nothing of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ditlab.checkpoints.shard import TensorKey
from ditlab.engine.deepspeed_internals import held_shard
from ditlab.engine.distributed import ControlChannel
from ditlab.inputs.model_inputs import ModelInputs
from ditlab.inputs.noise import derived_seed
from ditlab.training.hooks import StepHook
from ditlab.training.state import CopiedState, TrainingState
from ditlab_addons.check.prove.reference import Tensors, Whole

DrawKey = tuple[int, str, int, int, int, int]
"""Seed, stream, step, micro-batch, its size and the first sample in it, which random numbers are keyed by."""
BESIDE = ("frozen", "buffer")
"""Fields of a state that are weights of any kind: trained, or averaged."""
WEIGHTS, AVERAGES, GRADIENTS = 0.02, 0.05, 0.01
"""Standard deviations of what is added to weights, and of averages against weights; size of the moments."""


def perturbed(state: CopiedState, seed: int, step: int, batch_size: int, scalars: Mapping[str, float]) -> CopiedState:
    """Return `state` at a later step with nothing at zero and no two values alike.

    Fresh weights hide faults: gates that begin at zero give whole branches no gradient, and an average is all but
    the weights. The numbers are a function of seed, field, parameter and place, so that workers agree on them.
    """
    found = dict(state.tensors)
    for (kind, name, start), values in state.tensors.items():
        drawn, moved = (
            torch.randn(
                start + values.numel(),
                generator=torch.Generator().manual_seed(derived_seed(seed, "prove", each, name)),
            )[start:]
            for each in (kind, "master")
        )
        if kind == "exp_avg_sq":
            found[kind, name, start] = GRADIENTS**2 * (0.5 + drawn.abs())
        elif kind in ("exp_avg", "momentum"):
            found[kind, name, start] = GRADIENTS * drawn
        elif kind == "frozen":  # as it is held: in the precision of the network
            found[kind, name, start] = (values.float() + WEIGHTS * moved).to(values.dtype)
        elif kind != "buffer":
            masters = state.tensors["master", name, start] + WEIGHTS * moved
            found[kind, name, start] = masters if kind == "master" else masters + AVERAGES * drawn
    later = {name: scalars.get(name, value) for name, value in state.scalars.items()}
    return CopiedState(found, later, step, step * batch_size)


def seed_generators(seed: int) -> None:
    """Seed the global generators, on which no step may depend."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@dataclass(frozen=True)
class RecordedPass:
    """One forward pass of a worker that counts."""

    key: DrawKey
    samples: list[str]
    """Digest of each sample as the network consumed it."""
    draws: dict[str, str]
    """Digest of each draw by name."""
    total: float
    """Weighted sum of the components."""
    components: dict[str, float]
    """Loss components."""


@dataclass
class RecordedStep:
    """One step of one worker."""

    before: CopiedState
    after: CopiedState
    passes: list[RecordedPass] = field(default_factory=list)
    gradients: dict[TensorKey, Tensor] = field(default_factory=dict)
    """After reduction, unscaled, before clipping; empty where the optimiser took no step."""
    rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Learning rate and weight decay that the optimiser stepped a parameter with."""
    divisor: float = 1.0
    """Number that clipping divides the gradient by."""
    stale: dict[str, list[str]] = field(default_factory=dict)
    """Parameters that the network computes with and that are not this worker's masters, cast: `before`, `after`."""
    computed: dict[str, str] = field(default_factory=dict)
    """Digest of each whole parameter as the network computes with it; of several workers whose parameters are whole."""


@dataclass(frozen=True)
class WholeStep:
    """One step of all workers, with whole tensors by parameter, flat, float32."""

    step: int
    """From 0."""
    before: dict[str, Whole]
    """State before the step, by field and parameter."""
    after: dict[str, Whole]
    gradients: Whole
    first: RecordedStep
    """The first worker's own record."""
    passes: list[RecordedPass]
    """Passes of all workers, in the order of their ranks."""
    stale: dict[str, list[str]]
    """Parameters that some worker computes with and that are not the masters, cast, or are others than its peers'."""
    disagreeing: list[str]
    """Parameters of which two workers hold the same slice with other gradients."""

    def weights(self) -> Whole:
        """Return the weights before the step, and buffers."""
        return {name: each for kind in ("master", *BESIDE) for name, each in self.before.get(kind, {}).items()}

    @classmethod
    def of(cls, parts: Sequence[RecordedStep]) -> WholeStep:
        """Put the workers' parts of a step together."""
        first = parts[0]
        gradients, disagreeing = join_slices([part.gradients for part in parts])
        before, _ = join_slices([part.before.tensors for part in parts])
        after, _ = join_slices([part.after.tensors for part in parts])
        stale = {when: {name for part in parts for name in part.stale[when]} for when in ("before", "after")}
        stale["after"] |= {
            name for part in parts for name in part.computed if part.computed[name] != first.computed.get(name)
        }
        return cls(
            first.before.step, before, after, gradients.get("gradient", {}), first,
            [each for part in parts for each in part.passes], {when: sorted(names) for when, names in stale.items()},
            disagreeing,
        )  # fmt: skip


def join_slices(parts: Iterable[Mapping[TensorKey, Tensor]]) -> tuple[dict[str, Whole], list[str]]:
    """Return whole flat tensors by field and parameter, and the parameters of which two parts differ."""
    slices: dict[tuple[str, str], dict[int, Tensor]] = {}
    differing: set[str] = set()
    for part in parts:
        for (kind, name, start), values in part.items():
            held = slices.setdefault((kind, name), {})
            if start in held and held[start].shape == values.shape and not torch.equal(held[start], values):
                differing.add(name)
            if start not in held or held[start].numel() < values.numel():
                held[start] = values
    whole: dict[str, Whole] = {}
    for (kind, name), held in slices.items():
        whole.setdefault(kind, {})[name] = torch.cat([held[start] for start in sorted(held)])
    return whole, sorted(differing)


def tensor_digest(values: Tensor) -> str:
    """Return a digest of a tensor's dtype and bytes."""
    raw = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(raw, digest_size=8, person=str(values.dtype)[-16:].encode()).hexdigest()


def sample_digests(batch: Tensors, names: Collection[str]) -> list[str]:
    """Return a digest of each sample of a prepared batch, over the named fields."""
    fields = [batch[name].detach().cpu() for name in sorted(names) if name in batch]
    return [":".join(map(tensor_digest, rows)) for rows in zip(*fields, strict=True)]


def prepared_digests(batch: Tensors, inputs: ModelInputs) -> dict[str, str]:
    """Return a digest of each tensor that the loss prepares of draws in the host's memory, by name."""
    return {name: tensor_digest(batch[name]) for name in batch.keys() - inputs.names}


class RecordingNoise:
    """Noise source whose draws are kept as digests by name."""

    def __init__(self, noise: Any, draws: dict[str, str]) -> None:
        self._noise, self._draws = noise, draws

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noise, name)

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw U[0, 1) of a shape."""
        values: Tensor = self._noise.uniform(name, shape)
        self._draws[name] = tensor_digest(values.float())
        return values

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Draw N(0, 1) of a shape."""
        values: Tensor = self._noise.normal(name, shape)
        self._draws[name] = tensor_digest(values.float())
        return values


def draw_key(noise: Any) -> DrawKey:
    """Return all that the numbers of a noise source depend on beside their name."""
    return noise.seed, noise.stream, noise.step, noise.micro_index, noise.micro_size, noise.start


class StepRecorder(StepHook):
    """Observer that records each step, and hands all workers' records of it to `compare` on the first worker."""

    def __init__(
        self, channel: ControlChannel, compare: Callable[[WholeStep], None],
        measured: Callable[[int, Mapping[str, float]], None],
    ) -> None:  # fmt: skip
        self._channel, self._compare, self._measured = channel, compare, measured
        self.keeps, self.kept = range(0), dict[int, RecordedStep]()
        """Steps (from 1) of which this worker's records are kept."""
        self.is_again = False
        """True while these are done again."""

    def attempt_begun(self, stepper: Any, memory: Any, saved: Mapping[str, str]) -> None:
        self._stepper, self._state = stepper, stepper.state

    def step_begun(self, step: int, micro_batches: Sequence[Any]) -> None:
        held = CopiedState.of(self._state)
        self._record = RecordedStep(held, held)
        self._record.stale["before"] = _stale(self._state, held)
        self._watching, self._held = ExitStack(), list[Any]()
        self._counts = iter([part.counts for part in self._stepper.share.passes])
        module, adam = self._state.module, self._state.engine.partitions.adam
        for handle in (
            module.register_forward_pre_hook(self._enter_pass), module.register_forward_hook(self._leave_pass),
            adam.register_step_pre_hook(self._keep_gradients),
        ):  # fmt: skip
            self._watching.callback(handle.remove)

    def step_ended(self, step: int) -> None:
        self._watching.close()
        record, state = self._record, self._state
        record.after = CopiedState.of(state)
        record.stale["after"] = _stale(state, record.after)
        if self._channel.world_size > 1 and state.engine.stage < 3:
            record.computed = {name: tensor_digest(each) for name, each in state.module.named_parameters()}
        parts: Any = self._channel.gather(record)
        if step in self.keeps:
            self.kept[step] = record
        if self._stepper.rank.is_first:
            self._compare(WholeStep.of(parts))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        self._measured(step, values)

    def _enter_pass(self, _: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        job, *rest = inputs
        if job != "loss" or not torch.is_grad_enabled():
            return None
        batch, noise = rest
        draws = prepared_digests(batch, self._stepper.inputs)
        self._held.append((batch, noise, draws))
        return job, batch, RecordingNoise(noise, draws)

    def _leave_pass(self, _: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if not self._held:
            return
        batch, noise, draws = self._held.pop()
        if next(self._counts):  # or it keeps step with workers of one micro-batch more
            components = {name: float(value.detach()) for name, value in output[1].items()}
            samples = sample_digests(batch, self._stepper.inputs.names_read)
            total = float(output[0].detach())
            self._record.passes.append(RecordedPass(draw_key(noise), samples, draws, total, components))

    def _keep_gradients(self, adam: Any, *_: Any) -> None:
        """Keep gradients and settings of the groups that are stepped; ZeRO-3 steps one at a time."""
        partitions, record = self._state.engine.partitions, self._record
        index_of = {id(flat): index for index, flat in enumerate(partitions.flats)}
        for group in adam.param_groups:
            for flat in group["params"]:
                index = index_of[id(flat)]
                settings = float(group["lr"]), float(group["weight_decay"])
                record.rates |= dict.fromkeys(partitions.members[index], settings)
                if flat.grad is not None:
                    gradient = flat.grad.detach().contiguous()
                    for part in partitions.slices_of[index]:
                        values = part.of(gradient).float().to("cpu", copy=True)
                        record.gradients["gradient", part.name, part.start] = values
        record.divisor = partitions.clip_factor


def _stale(state: TrainingState, held: CopiedState) -> list[str]:
    """Return the parameters whose values, as the network computes with them, are not this worker's masters.

    With ZeRO-3 these are the shards between passes.
    """
    computed, wrong = dict(state.module.named_parameters()), []
    for (kind, name, start), master in held.tensors.items():
        if kind == "master":
            shard = held_shard(computed[name])
            values = computed[name].reshape(-1)[start:] if shard is None else shard.view(-1)
            values = values.detach().to("cpu")[: master.numel()]
            if not torch.equal(values, master.to(values.dtype)):
                wrong.append(name)
    return wrong
