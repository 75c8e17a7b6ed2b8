"""Recording of an engine's steps in the real training loop: nothing that it computes with is changed.

Observed are the first step of all, then two around an epoch's border from a state without zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ditlab.checking.prove.resume import CopiedState, sample_digests, tensor_digest
from ditlab.checkpoints.shard import TensorKey
from ditlab.checkpoints.store import CheckpointStore
from ditlab.data.loading.transfer import MicroBatch
from ditlab.engine.deepspeed_internals import held_shard
from ditlab.engine.distributed import Rank
from ditlab.inputs.noise import derived_seed
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import RatioZClip, SteppedCosineRestartSchedule, ZClip
from ditlab.training.plan import RunPlan, TrainingRun
from ditlab.training.recovery import MemoryPlan
from ditlab.training.reporting import ProgressMarker, Reporter
from ditlab.training.state import TrainingState
from ditlab.training.stepping import Stepper
from ditlab.training.trainer import Trainer

ALWAYS = 2**31 - 1
"""Steps in a row without a finite loss that a proof passes over."""
WEIGHTS, AVERAGES, GRADIENTS = 0.02, 0.05, 0.01
"""Standard deviations of what is added to weights, and of averages against weights; size of the moments."""
MOST_DRAWN = 1000
"""Furthest step for a mixture, whose order draws for every step before."""
LOSS_SCALE = 2.0**8
"""Scale of float16's loss in the later steps: a run's first scale overflows and skips steps until it fits."""


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
    """Digest of each sample as the network consumed it."""
    total: float
    """Weighted sum of the components."""
    components: dict[str, float]


@dataclass
class RecordedStep:
    """One step of one worker."""

    step: int
    """From 0."""
    before: dict[TensorKey, Tensor]
    """State before it: `master`, moments, `ema`, `power_LENGTH`; flat float32 slices on the host."""
    scalars: dict[str, float]
    """State before it that is alike on all workers."""
    passes: list[RecordedPass] = field(default_factory=list)
    gradients: dict[TensorKey, Tensor] = field(default_factory=dict)
    """After reduction, unscaled, before clipping; empty where the optimiser took no step."""
    rates: dict[str, GroupSetting] = field(default_factory=dict)
    """Settings of the optimiser, by parameter."""
    clip_factor: float = 1.0
    """Number that clipping divides the gradient by."""
    after: dict[TensorKey, Tensor] = field(default_factory=dict)
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
    wrong = {name for part in parts for name in part.wrong_weights}
    wrong |= {name for part in parts for name in part.computed if part.computed[name] != first.computed.get(name)}
    wrong_before = {name for part in parts for name in part.wrong_before}
    passes = [each for part in parts for each in part.passes]
    return WholeStep(
        first.step, before, after, gradients.get("gradient", {}), first, passes, sorted(wrong_before), sorted(wrong),
        disagreeing,
    )  # fmt: skip


def _joined(parts: Iterable[Mapping[TensorKey, Tensor]]) -> tuple[dict[str, dict[str, Tensor]], list[str]]:
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


def by_module(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of each module, in the order given."""
    modules: dict[str, list[str]] = {}
    for name in names:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    return modules


class StepRecorder(Reporter):
    """Observer that keeps what the training state holds around each step, and what the loop reports of it."""

    def __init__(self) -> None:
        super().__init__(lambda: False, lambda message: None, ProgressMarker())
        self.recorded: list[RecordedStep] = []
        self._watching = ExitStack()

    def attempt_begun(self, stepper: Stepper, memory: MemoryPlan, saved: Mapping[str, str]) -> None:
        self._stepper = stepper

    def step_begun(self, step: int, micro_batches: Sequence[MicroBatch]) -> None:
        stepper, state = self._stepper, self._stepper.state
        held = CopiedState.of(state)
        record = RecordedStep(state.step, held.tensors, held.scalars)
        record.wrong_before = _wrong_weights(state, record.before)
        counts = [part.counts for part in stepper.share.passes]
        self._watching.enter_context(_watching(state, record, stepper.inputs.names_read, counts))
        self.recorded.append(record)

    def step_ended(self, step: int) -> None:
        self.attempt_ended()
        state, record = self._stepper.state, self.recorded[-1]
        held = CopiedState.of(state)
        record.after, record.scalars_after = held.tensors, held.scalars
        record.wrong_weights = _wrong_weights(state, record.after)
        if state.engine.stage < 3:
            record.computed = {name: tensor_digest(each) for name, each in state.module.named_parameters()}

    def attempt_ended(self) -> None:
        self._watching.close()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for record in self.recorded:
            if record.step == step - 1:
                record.metrics |= values


@contextmanager
def _watching(
    state: TrainingState, record: RecordedStep, fields: Collection[str], counts: Sequence[bool]
) -> Iterator[None]:
    """Record passes and the optimiser's step inside. `counts`: for each pass, whether it counts."""
    held: list[tuple[Mapping[str, Tensor], Any]] = []
    seen = 0

    def enter(_: Any, inputs: tuple[Any, ...]) -> None:
        if inputs[0] == "loss" and torch.is_grad_enabled():
            held.append(inputs[1:3])

    def leave(_: Any, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal seen
        if not held:
            return
        batch, noise = held.pop()
        if counts[seen]:
            key = DrawKey(noise.seed, noise.stream, noise.step, noise.micro_index, noise.micro_size, noise.start)
            components = {name: float(value.detach()) for name, value in output[1].items()}
            samples = sample_digests(batch, fields)
            record.passes.append(RecordedPass(key, samples, float(output[0].detach()), components))
        seen += 1

    partitions = state.engine.partitions
    hooks: list[Any] = [
        state.module.register_forward_pre_hook(enter),
        state.module.register_forward_hook(leave),
        partitions.adam.register_step_pre_hook(_gradient_keeper(state, record)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _gradient_keeper(state: TrainingState, record: RecordedStep) -> Callable[..., None]:
    """Return a hook that keeps gradients and settings of the groups that are stepped; ZeRO-3 steps one at a time."""
    partitions = state.engine.partitions

    def keep(adam: Any, *_: Any) -> None:
        index_of = {id(flat): index for index, flat in enumerate(partitions.flats)}
        for group in adam.param_groups:
            for flat in group["params"]:
                index = index_of[id(flat)]
                for name in partitions.members[index]:
                    record.rates[name] = GroupSetting(float(group["lr"]), float(group["weight_decay"]))
                if flat.grad is None:
                    continue
                gradient = flat.grad.detach().contiguous()
                for part in partitions.slices_of[index]:
                    values = part.of(gradient).float().to("cpu", copy=True)
                    record.gradients["gradient", part.name, part.start] = values
        scale = getattr(adam, "grad_scale", None)
        record.clip_factor = 1.0 if scale is None else float(scale)

    return keep


def _wrong_weights(state: TrainingState, held: Mapping[TensorKey, Tensor]) -> list[str]:
    """Return the parameters whose values, as the network computes with them, are not this worker's masters.

    With ZeRO-3 these are the shards between passes. Whether workers agree on whole parameters is for `join_steps`.
    """
    computed = dict(state.module.named_parameters())
    wrong = []
    for (kind, name, start), master in held.items():
        if kind != "master":
            continue
        whole = computed[name].detach()
        shard = held_shard(computed[name])
        if shard is not None:
            values = shard.detach().to("cpu").view(-1)[: master.numel()]
        else:
            values = whole.to("cpu").reshape(-1)[start : start + master.numel()]
        if not torch.equal(values, master.to(values.dtype)):
            wrong.append(name)
    return wrong


@dataclass(frozen=True)
class StepSpan:
    """Consecutive steps (from 0) that are observed."""

    first: int
    stop: int
    is_perturbed: bool
    """True if they begin from a perturbed state."""


def observed_spans(experiment: Experiment, plan: RunPlan) -> list[StepSpan]:
    """Return which steps are observed: the first, and two around the end of an epoch after the warm-up."""
    total, epoch = plan.total_steps, plan.epoch_steps
    warmup = 0
    if not isinstance(experiment.schedule, SteppedCosineRestartSchedule):
        warmup = experiment.schedule.warmup_steps(epoch)
    border = -(-max(warmup, epoch) // epoch) * epoch - 1 if epoch else min(max(warmup, 100), MOST_DRAWN)
    first = max(0, min(border, total - 2))
    return [StepSpan(0, 1, False), StepSpan(first, min(first + 2, total), True)]


def observed_experiment(experiment: Experiment) -> Experiment:
    """Return the experiment with each step logged, without evaluations, from fresh weights, whatever the losses."""
    return experiment.replace_all(
        {
            "tracking.every": 1, "evaluation.every": None, "evaluation.samples": 0, "evaluation.quality": 0,
            "checkpoint.storage": None, "checkpoint.keep": 1, "training.non_finite.policy": "skip",
            "training.non_finite.limit": ALWAYS, "start": None,
        }
    )  # fmt: skip


def observe_steps(run: TrainingRun, rank: Rank, folder: Path) -> list[RecordedStep]:
    """Train the observed steps of a run on this worker, and return their records; raises what training raises."""
    experiment = observed_experiment(run.experiment)
    checkpoints = CheckpointStore.at(folder / "observed")
    own = replace(run, experiment=experiment, checkpoints=checkpoints, swap=folder / "swap", start=None)
    recorder = StepRecorder()
    trainer = Trainer(own, rank, recorder)
    try:
        trainer.resume()
        for span in observed_spans(experiment, run.plan):
            if span.is_perturbed:
                _perturb(trainer.state, experiment, span.first)
            trainer.train_span(span.stop)
    finally:
        trainer.close()
    trainer.release()
    return recorder.recorded


def _perturb(state: TrainingState, experiment: Experiment, step: int) -> None:
    """Put a perturbed state of a later step in the place of a training's own."""
    perturbed = PerturbedState(state.engine.state(), state.buffers, experiment)
    own = state.engine.scalars()
    scalars = {name: value for name, value in {**own, **_later_scalars(experiment, step)}.items() if name in own}
    state.load(perturbed, scalars, step, step * experiment.batch.size)


def _later_scalars(experiment: Experiment, step: int) -> dict[str, float]:
    """Return the state of counters and statistics after so many steps."""
    scalars = {"adam_step": float(step), "loss_scale.cur_scale": LOSS_SCALE}
    if isinstance(experiment.training.clip, ZClip | RatioZClip):
        warmup = getattr(experiment.training.clip, "warmup", 1)
        scalars |= {"clip.count": float(warmup), "clip.mean": GRADIENTS, "clip.variance": (GRADIENTS / 10) ** 2}
    return scalars


class PerturbedState:
    """State to load in place of a saved one: this worker's own, with nothing at zero and no two values alike.

    The numbers are a function of seed, field, parameter and place, so that workers agree on them.
    """

    def __init__(self, state: Any, buffers: Mapping[str, Tensor], experiment: Experiment) -> None:
        self._held = {key: values.detach().to("cpu", copy=True) for key, values in state}
        self._buffers = {name: value.detach().float().cpu().view(-1).clone() for name, value in buffers.items()}
        self._seed = experiment.seed

    def has(self, kind: str) -> bool:
        """Return True if any slice of a field is there."""
        return any(key[0] == kind for key in self._held)

    def read(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        """Return values `start` to `stop` of a flattened tensor, float32."""
        if kind == "buffer":
            return self._buffers[name][start:stop]
        drawn = self._normal(kind, name, start, stop)
        if kind == "exp_avg_sq":
            return GRADIENTS**2 * (0.5 + drawn.abs())
        if kind in ("exp_avg", "momentum"):
            return GRADIENTS * drawn
        masters = self._held["master", name, start] + WEIGHTS * self._normal("master", name, start, stop)
        return masters if kind == "master" else masters + AVERAGES * drawn

    def _normal(self, kind: str, name: str, start: int, stop: int) -> Tensor:
        generator = torch.Generator().manual_seed(derived_seed(self._seed, "prove", kind, name))
        return torch.randn(stop, generator=generator)[start:]
