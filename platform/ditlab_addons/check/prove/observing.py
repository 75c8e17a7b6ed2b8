"""A step of the real training loop as a hook sees it: its inputs and its results. The hook changes
nothing of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
from ditlab_addons.check.prove.reference import RecordedNoise, Tensors, Whole
from ditlab_addons.check.tensor_digest import tensor_digest

BESIDE = ("frozen", "buffer")
"""Fields of a state that are weights of any kind: trained, or averaged."""
WEIGHTS = 0.02
AVERAGES = 0.05
GRADIENTS = 0.01
"""Standard deviations of what is added to weights, and of averages against weights; size of the
moments.
"""


def perturbed(
    state: CopiedState, seed: int, step: int, batch_size: int, scalars: Mapping[str, float]
) -> CopiedState:
    """Return `state` at a later step with nothing at zero and no two values alike.

    Fresh weights hide faults: gates that begin at zero give whole branches no gradient, and an
    average is all but the weights. The numbers are a function of seed, field, parameter and place,
    so that workers agree on them.
    """

    def drawn(kind: str, name: str, start: int, num: int) -> Tensor:
        generator = torch.Generator().manual_seed(derived_seed(seed, "prove", kind, name))
        return torch.randn(start + num, generator=generator)[start:]

    found = dict(state.tensors)
    for key, values in state.tensors.items():
        kind, name, start = key
        own = drawn(*key, values.numel())
        moved = WEIGHTS * drawn("master", name, start, values.numel())
        match kind:
            case "exp_avg_sq":
                found[key] = GRADIENTS**2 * (0.5 + own.abs())
            case "exp_avg" | "momentum":
                found[key] = GRADIENTS * own
            # frozen weights as they are held: in the precision of the network
            case "frozen" | "master":
                found[key] = (values.float() + moved).to(values.dtype)
            case "buffer":
                continue
            case _:
                found[key] = state.tensors["master", name, start] + moved + AVERAGES * own
    later = {name: scalars.get(name, value) for name, value in state.scalars.items()}
    return CopiedState(found, later, step, step * batch_size)


def seed_generators(seed: int) -> None:
    """Seed the global generators, on which no step may depend."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class DrawKey(NamedTuple):
    """All that random numbers depend on beside their name."""

    seed: int
    stream: str
    step: int
    micro_index: int
    micro_size: int
    start: int
    """First sample in the micro-batch."""

    @classmethod
    def of(cls, noise: RecordedNoise) -> DrawKey:
        """Return the key of a noise source's numbers."""
        return cls(*(getattr(noise, name) for name in cls._fields))


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
    """Parameters that the network computes with and that are not this worker's masters, cast:
    `before`, `after`.
    """
    computed: dict[str, str] = field(default_factory=dict)
    """Digest of each whole parameter as the network computes with it; of several workers whose
    parameters are whole.
    """


class WholeStep:
    """One step of all workers, with whole tensors by parameter, flat, float32."""

    def __init__(self, parts: Sequence[RecordedStep]) -> None:
        """Put the workers' parts of a step together, in the order of their ranks."""
        self.first = parts[0]
        """The first worker's own record."""
        self.step = self.first.before.step
        """From 0."""
        self.passes = [each for part in parts for each in part.passes]
        self.before, _ = join_slices(part.before.tensors for part in parts)
        """State before the step, by field and parameter."""
        self.after, _ = join_slices(part.after.tensors for part in parts)
        gradients, self.disagreeing = join_slices(part.gradients for part in parts)
        """Parameters of which two workers hold the same slice with other gradients."""
        self.gradients = gradients.get("gradient", {})
        stale: dict[str, set[str]] = {"before": set(), "after": set()}
        for part in parts:
            stale["before"].update(part.stale["before"])
            stale["after"].update(part.stale["after"])
            stale["after"] |= {
                name for name, _ in part.computed.items() ^ self.first.computed.items()
            }
        self.stale = {when: sorted(names) for when, names in stale.items()}
        """Parameters that some worker computes with and that are not the masters, cast, or are not
        its peers'.
        """

    def weights(self) -> Whole:
        """Return the weights before the step, and buffers."""
        found: Whole = {}
        for kind in ("master", *BESIDE):
            found |= self.before.get(kind, {})
        return found


def join_slices(parts: Iterable[Mapping[TensorKey, Tensor]]) -> tuple[dict[str, Whole], list[str]]:
    """Return whole flat tensors by field and parameter, and the parameters of which two parts
    differ.
    """
    slices: dict[TensorKey, Tensor] = {}
    differing: set[str] = set()
    for part in parts:
        for key, values in part.items():
            other = slices.setdefault(key, values)
            if (
                other is not values
                and other.shape == values.shape
                and not torch.equal(other, values)
            ):
                differing.add(key[1])
            slices[key] = max(other, values, key=Tensor.numel)
    joined: dict[str, dict[str, list[Tensor]]] = {}
    for kind, name, start in sorted(slices, key=lambda key: key[2]):
        joined.setdefault(kind, {}).setdefault(name, []).append(slices[kind, name, start])
    whole = {
        kind: {name: torch.cat(each) for name, each in names.items()}
        for kind, names in joined.items()
    }
    return whole, sorted(differing)


def sample_digests(batch: Tensors, names: Collection[str]) -> list[str]:
    """Return a digest of each sample of a prepared batch, over the named fields."""
    fields = [batch[name].detach().cpu() for name in sorted(names) if name in batch]
    return [":".join(map(tensor_digest, rows)) for rows in zip(*fields, strict=True)]


def prepared_digests(batch: Tensors, inputs: ModelInputs) -> dict[str, str]:
    """Return a digest of each tensor that the loss prepares of draws in the host's memory, by
    name.
    """
    return {name: tensor_digest(batch[name]) for name in batch.keys() - inputs.names}


class StepRecorder(StepHook):
    """Observer that records each step, and hands all workers' records of it to `compare` on the
    first worker.
    """

    def __init__(
        self,
        channel: ControlChannel,
        compare: Callable[[WholeStep], None],
        measured: Callable[[int, Mapping[str, float]], None],
        keeps: range,
    ) -> None:
        """`keeps`: steps (from 1) of which this worker's records are kept."""
        self._channel = channel
        self._compare = compare
        self._measured = measured
        self._keeps = keeps
        self.kept: dict[int, RecordedStep] = {}

    def attempt_begun(self, stepper: Any, memory: Any, saved: Mapping[str, str]) -> None:
        self._stepper = stepper
        self._state = stepper.state

    def step_begun(self, step: int, micro_batches: Sequence[Any]) -> None:
        held = CopiedState.of(self._state)
        self._record = RecordedStep(held, held)
        self._record.stale["before"] = _stale(self._state, held)
        self._counts = iter([part.counts for part in self._stepper.share.passes])
        module = self._state.module
        adam = self._state.engine.partitions.adam
        self._hooks = [
            module.register_forward_pre_hook(self._enter_pass),
            module.register_forward_hook(self._leave_pass),
            adam.register_step_pre_hook(self._keep_gradients),
        ]

    def step_ended(self, step: int) -> None:
        for hook in self._hooks:
            hook.remove()
        record = self._record
        state = self._state
        record.after = CopiedState.of(state)
        record.stale["after"] = _stale(state, record.after)
        if self._channel.world_size > 1 and state.engine.stage < 3:
            record.computed = {
                name: tensor_digest(each) for name, each in state.module.named_parameters()
            }
        parts: Any = self._channel.gather(record)
        if step in self._keeps:
            self.kept[step] = record
        if self._stepper.rank.is_first:
            self._compare(WholeStep(parts))

    def measured(self, step: int, values: Mapping[str, float]) -> None:
        self._measured(step, values)

    def _enter_pass(self, _: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        job, *rest = inputs
        if job != "loss" or not torch.is_grad_enabled():
            return None
        batch, noise = rest
        return (
            job,
            batch,
            RecordedNoise(**vars(noise), draws=prepared_digests(batch, self._stepper.inputs)),
        )

    def _leave_pass(self, _: Any, inputs: tuple[Any, ...], output: Any) -> None:
        noise = inputs[-1]
        # Or it is no pass of training, or keeps step with workers of one micro-batch more.
        if isinstance(noise, RecordedNoise) and next(self._counts):
            total, values = output
            components = {name: float(value.detach()) for name, value in values.items()}
            samples = sample_digests(inputs[1], self._stepper.inputs.names_read)
            one = RecordedPass(
                DrawKey.of(noise), samples, noise.draws, float(total.detach()), components
            )
            self._record.passes.append(one)

    def _keep_gradients(self, adam: Any, *_: Any) -> None:
        """Keep gradients and settings of the groups that are stepped; ZeRO-3 steps one at a
        time.
        """
        partitions = self._state.engine.partitions
        record = self._record
        index_of = {id(flat): index for index, flat in enumerate(partitions.flats)}
        for group in adam.param_groups:
            settings = float(group["lr"]), float(group["weight_decay"])
            for flat in group["params"]:
                index = index_of[id(flat)]
                record.rates |= dict.fromkeys(partitions.members[index], settings)
                if flat.grad is None:
                    continue
                for part in partitions.slices_of[index]:
                    values = part.of(flat.grad.detach().contiguous())
                    record.gradients["gradient", part.name, part.start] = values.float().to(
                        "cpu", copy=True
                    )
        record.divisor = partitions.clip_factor


def _stale(state: TrainingState, held: CopiedState) -> list[str]:
    """Return the parameters whose values, as the network computes with them, are not this worker's
    masters.

    With ZeRO-3 these are the shards between passes.
    """
    computed = dict(state.module.named_parameters())
    wrong = []
    for (kind, name, start), master in held.tensors.items():
        if kind != "master":
            continue
        values = held_shard(computed[name])
        if values is None:
            values = computed[name].reshape(-1)[start:]
        values = values.detach().view(-1)[: master.numel()].to("cpu")
        if not torch.equal(values, master.to(values.dtype)):
            wrong.append(name)
    return wrong
