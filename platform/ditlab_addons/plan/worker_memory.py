"""Memory of one worker at its peak: in the passes, in the update, in an evaluation; and of its
host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal, NamedTuple

from ditlab.encoders.autoencoder import IMAGES_AT_A_TIME
from ditlab.inputs.meta_step import DTYPES, DataShape, MetaStep
from ditlab.spec.engine import LARGEST_BUCKET
from ditlab.spec.experiment import Experiment
from ditlab.spec.optimization import GATHERED_VALUES, GroupRates
from ditlab_addons.plan.frozen_encoders import AT_ONCE, EncoderWork
from ditlab_addons.plan.pass_memory import PassMemory, evaluation_memory
from ditlab_models.finetuning import parameter_label
from ditlab_models.parameters import parameter_roles

MASTER = 4
"""Bytes of a master weight, a moment and an averaged weight: float32 always."""
KEPT_GATHERED = 100_000
"""Values below which ZeRO-3 keeps a parameter whole once it was used (DeepSpeed's
param_persistence_threshold).
"""
MOST_GATHERED = 1_000_000_000
"""Values that ZeRO-3 keeps whole between forward and backward pass (its max_reuse_distance)."""
PREFETCHED = 50_000_000
"""Values that ZeRO-3 gathers at once, ahead of their use (its prefetch_bucket_size)."""
SUB_GROUP = 1_000_000_000
"""Values that ZeRO-3 updates at once (its sub_group_size)."""
EXCHANGED = 2**26
"""Bytes that are copied at once when averaged weights are swapped in for an evaluation."""

Stage = Literal[0, 1, 2, 3]
Offload = Literal["none", "cpu"]


@dataclass(frozen=True)
class ZeroSetting:
    """Where the state of a run is."""

    stage: Stage
    offload: Offload = "none"
    offload_parameters: Offload = "none"

    @property
    def offloads(self) -> bool:
        """True if the optimiser's state is offloaded."""
        return self.offload != "none"

    @property
    def offloads_parameters(self) -> bool:
        """True if the weights are offloaded too."""
        return self.offload_parameters != "none"

    def __str__(self) -> str:
        """Write `3 cpu`; `3 cpu all` where parameters are offloaded too."""
        offload = f" {self.offload}" if self.offloads else ""
        return f"{self.stage}{offload}{' all' if self.offloads_parameters else ''}"


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that the optimiser updates alike."""

    sizes: Sequence[int]
    """Values of each parameter."""
    moments: int
    """Tensors of optimiser state of each, as large as it, in float32."""

    def share(self, stage: Stage, workers: int) -> int:
        """Return the values of one worker's partition, padding included; of all at stage 0."""
        if stage == 0:
            return sum(self.sizes)
        if stage == 3:
            return sum(math.ceil(size / workers) for size in self.sizes)
        # NCCL's alignment: each worker's part of a group's flat buffer has an even number of values
        return math.ceil(sum(self.sizes) / (2 * workers)) * 2


class ParameterSizes:
    """Sizes of everything that is trained, in values."""

    def __init__(
        self,
        groups: Sequence[ParameterGroup],
        iterations: Sequence[int] = (),
        frozen: Sequence[int] = (),
    ) -> None:
        """`iterations`: operations of each parameter's update that need all of it, Muon's
        Newton-Schulz iterations; `frozen`: values of each parameter that is not trained."""
        self.groups = groups
        self.iterations = iterations
        self.frozen = sum(frozen)
        self._frozen_group = ParameterGroup(frozen, 0)
        sizes = [size for group in groups for size in group.sizes]
        self.total = sum(sizes)
        self.largest = max(sizes)
        self.bucket = min(self.total, LARGEST_BUCKET)
        """Values of the buffer that gradients are reduced in."""
        self.small = sum(size for size in sizes if size < KEPT_GATHERED)
        """Values of parameters that ZeRO-3 keeps whole."""

    @classmethod
    def of_experiment(cls, experiment: Experiment, data: DataShape) -> ParameterSizes:
        """Build everything that is trained on the meta device, and return its sizes."""
        groups: dict[GroupRates, list[int]] = {}
        iterations = list[int]()
        frozen = list[int]()
        for prefix, module in zip(
            ("network.", "objective."), MetaStep(experiment, data).modules(), strict=False
        ):
            roles = parameter_roles(module)
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    frozen.append(parameter.numel())
                    continue
                rates = experiment.optimizer.rates(
                    roles[name].role, parameter_label(f"{prefix}{name}")
                )
                groups.setdefault(rates, []).append(parameter.numel())
                iterations.append(
                    experiment.optimizer.update_flops(tuple(parameter.shape), roles[name])
                )
        return cls(
            [ParameterGroup(sizes, len(rates.moments)) for rates, sizes in groups.items()],
            iterations,
            frozen,
        )

    def share(self, stage: Stage, workers: int) -> int:
        """Return the values of one worker's partitions, padding included; of all at stage 0."""
        return sum(group.share(stage, workers) for group in self.groups)

    def frozen_share(self, stage: Stage, workers: int) -> int:
        """Return the frozen values that one worker holds: all, or its shards with ZeRO-3."""
        if stage == 3:
            return self._frozen_group.share(3, workers)
        return self.frozen

    def moment_bytes(self, stage: Stage, workers: int) -> int:
        """Return the bytes of one worker's moments."""
        return sum(MASTER * group.moments * group.share(stage, workers) for group in self.groups)


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one device, or of its host, by what holds them."""

    parameters: int = 0
    """Weights that the network computes with."""
    gradients: int = 0
    """Gradients; between two steps those that are kept: ZeRO-3's partition."""
    optimizer: int = 0
    """Master weights and moments."""
    average: int = 0
    """Averages of the weights."""
    activations: int = 0
    """Kept from the forward to the backward pass."""
    workspace: int = 0
    """Temporary tensors, the loss' among them, and buffers of the engine."""
    encoders: int = 0
    """Weights of frozen encoders."""

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(astuple(self))

    def plus(self, **more: int) -> MemoryParts:
        """Return the parts with more bytes of those that are named."""
        return replace(self, **{name: getattr(self, name) + size for name, size in more.items()})


@dataclass(frozen=True)
class WorkerShape:
    """Facts that decide a worker's memory beside the passes."""

    sizes: ParameterSizes
    setting: ZeroSetting
    workers: int
    compute: int
    """Bytes of a value of the compute dtype."""
    accumulates: bool
    """True where a worker's step has several micro-batches."""
    on_gpu: bool

    @property
    def stage(self) -> Stage:
        """ZeRO stage."""
        return self.setting.stage

    @property
    def share(self) -> int:
        """Values of the worker's partitions, padding included; all at stage 0."""
        return self.sizes.share(self.stage, self.workers)


class StateMemory(NamedTuple):
    """Bytes of the state of one worker, between two steps."""

    device: MemoryParts
    host: MemoryParts
    """In host memory that is not the device's."""


def state_memory(shape: WorkerShape, num_averages: int) -> StateMemory:
    """Return the state of one worker that keeps so many averages of the weights."""
    sizes = shape.sizes
    setting = shape.setting
    compute = shape.compute
    stage = shape.stage
    share = shape.share
    optimizer = sizes.moment_bytes(stage, shape.workers)
    if stage:
        optimizer += MASTER * share
    average = MASTER * share * num_averages
    weights = compute * (
        sizes.frozen_share(stage, shape.workers) + share * (shape.workers if stage in (1, 2) else 1)
    )
    partition = buffers = 0
    if stage == 3:
        partition = compute * share
        kept_whole = sizes.small if shape.workers > 1 else 0
        buffers = compute * (sizes.bucket + kept_whole)
    if not setting.offloads:
        return StateMemory(
            MemoryParts(weights, partition, optimizer, average, 0, buffers), MemoryParts()
        )
    # the CPU gets gradients in float32 and, at stages 1 and 2, the new weights in the compute dtype
    gradients = MASTER * share + partition
    if stage == 2 and shape.accumulates:
        gradients += compute * share
    host_buffers = 0
    if stage < 3:
        buffers = compute * sizes.largest
        host_buffers = compute * share + buffers
    moved = weights if setting.offloads_parameters else 0
    device = MemoryParts(parameters=weights - moved, workspace=buffers)
    return StateMemory(device, MemoryParts(moved, gradients, optimizer, average, 0, host_buffers))


@dataclass(frozen=True)
class WorkerMemory:
    """Bytes of one worker at its peaks."""

    passes: MemoryParts
    """Forward and backward passes, and the reduction of gradients."""
    update: MemoryParts
    """The optimiser's update."""
    evaluation: MemoryParts
    """Evaluation with averaged weights; all zero without evaluations."""
    host: int
    """Host memory of offloaded state and of the checkpoint's copy; 0 where the device is the
    host.
    """
    state: StateMemory
    """Between two steps."""
    checkpoint_copy: int
    """Bytes of the copy in host memory from which a checkpoint is written in the background; 0 when
    it is blocking.
    """

    @property
    def peak_phase(self) -> str:
        """Name of the largest of the three peaks."""
        return max(("passes", "update", "evaluation"), key=lambda name: getattr(self, name).total)

    @property
    def peak(self) -> MemoryParts:
        """The largest of the three peaks."""
        parts: MemoryParts = getattr(self, self.peak_phase)
        return parts


def passes_peak(shape: WorkerShape, state: StateMemory, passes: PassMemory) -> MemoryParts:
    """Return the peak of forward and backward passes, or of the reduction of gradients behind
    them.
    """
    offloads = shape.setting.offloads
    stage = shape.stage
    gradients = shape.compute * shape.sizes.total
    share = shape.compute * shape.share
    bucket = shape.compute * shape.sizes.bucket
    dropped = peak_during(state, passes.peak_without_gradients, 0, passes.activations)
    if stage == 3:
        return _sharded_peak(shape, state, dropped)
    adds_up = stage == 2 and shape.accumulates
    kept = share if adds_up and not offloads else 0
    # On GPUs, and wherever state is offloaded, stages 1 and 2 copy gradients into one contiguous
    # bucket.
    contiguous = bucket if stage and (shape.on_gpu or offloads) else 0
    if stage == 2 and contiguous:
        return larger_parts(dropped, peak_during(state, gradients, gradients)).plus(
            gradients=kept, workspace=bucket
        )
    candidates = [peak_during(state, passes.peak, passes.gradients_at_peak, passes.activations)]
    if stage < 2 and shape.accumulates:
        candidates.append(dropped.plus(gradients=gradients))
    if shape.workers > 1 or adds_up:
        copies = share if contiguous else bucket
        candidates.append(peak_during(state, gradients + copies, gradients))
    return larger_parts(*candidates).plus(gradients=kept, workspace=contiguous)


def _sharded_peak(shape: WorkerShape, state: StateMemory, passes: MemoryParts) -> MemoryParts:
    """Return the peak with ZeRO-3: of the passes, which gather parameters, or of the reduction."""
    if shape.workers > 1 or shape.setting.offloads_parameters:
        passes = passes.plus(workspace=_gathered(shape))
    copies = shape.share if shape.on_gpu else shape.sizes.bucket
    return larger_parts(passes, peak_during(state, shape.compute * (shape.sizes.bucket + copies)))


def update_peak(shape: WorkerShape, state: StateMemory) -> MemoryParts:
    """Return the peak of the update: the partition's gradients, once more as a flat tensor, once
    more in float32.
    """
    sizes = shape.sizes
    compute = shape.compute
    share = shape.share
    # Muon orthogonalises in five times the size of a square matrix; several workers gather matrices
    # and send them.
    muon = [size for group in sizes.groups if group.moments == 1 for size in group.sizes]
    gathered = 5 * max(muon, default=0)
    if shape.workers > 1:
        gathered += 2 * min(math.ceil(sum(muon) / shape.workers), max(GATHERED_VALUES, *muon, 0))
    gathered *= MASTER
    at_rest = state.device
    if shape.stage == 0:
        return at_rest.plus(gradients=compute * sizes.total, workspace=gathered)
    if shape.setting.offloads:
        return at_rest
    flat = compute + (MASTER if compute != MASTER else 0)
    if shape.stage < 3:
        flattened = at_rest.plus(gradients=compute * share, workspace=flat * share)
        return larger_parts(flattened, at_rest.plus(workspace=MASTER * share + gathered))
    # small parameters are partitioned again before it
    whole = compute * sizes.small if shape.workers > 1 else 0
    return larger_parts(
        at_rest, at_rest.plus(workspace=flat * min(share, SUB_GROUP) - whole + gathered)
    )


def _gathered(shape: WorkerShape) -> int:
    """Bytes of parameters that ZeRO-3 gathers: whole ones, and the flat buffers of those on their
    way.
    """
    sizes = shape.sizes
    values = sizes.total - sizes.small + sizes.frozen
    largest = sizes.largest if sizes.largest >= KEPT_GATHERED else 0
    return shape.compute * (min(values, MOST_GATHERED) + min(values, PREFETCHED + largest))


def peak_during(
    state: StateMemory, more: int, gradients: int = 0, activations: int = 0
) -> MemoryParts:
    """Add `more` bytes to the state: finished gradients and activations among them, and the rest is
    workspace.
    """
    kept = min(activations, more - gradients)
    return state.device.plus(
        gradients=gradients, activations=kept, workspace=more - gradients - kept
    )


def larger_parts(*candidates: MemoryParts) -> MemoryParts:
    """Return the parts with the largest total."""
    return max(candidates, key=lambda parts: parts.total)


def saved_bytes(experiment: Experiment, sizes: ParameterSizes) -> tuple[int, int]:
    """Return the sizes of one checkpoint (master weights, moments, averages and frozen weights of
    all workers together) and of one snapshot of averages, 0 where none are kept."""
    averages = experiment.training.averages
    snapshot = MASTER * sizes.total * len(averages.lengths) if averages else 0
    ema = MASTER * sizes.total if experiment.keeps_average else 0
    frozen = DTYPES[experiment.training.precision].itemsize * sizes.frozen
    return MASTER * sizes.total + ema + snapshot + sizes.moment_bytes(0, 1) + frozen, snapshot


def setting_memory(
    experiment: Experiment,
    data: DataShape,
    setting: ZeroSetting,
    micro: int,
    on_gpu: bool,
    sizes: ParameterSizes,
    passes: PassMemory,
    encoders: EncoderWork,
) -> WorkerMemory:
    """Return one worker's memory with micro-batches of `micro` samples, on `resources.max_workers`
    workers.
    """
    workers = experiment.resources.max_workers
    evaluation = experiment.evaluation
    compute = DTYPES[experiment.training.precision].itemsize
    shape = WorkerShape(
        sizes, setting, workers, compute, experiment.batch.size > micro * workers, on_gpu
    )
    averages = experiment.training.averages
    num_averages = int(experiment.keeps_average)
    if averages:
        num_averages += len(averages.lengths)
    state = state_memory(shape, num_averages)
    copy = 0
    # a copy of its part; at stage 0 the first worker has all of it
    if experiment.checkpoint.write == "background":
        copy = sum(saved_bytes(experiment, sizes))
        if setting.stage:
            copy //= workers
    in_passes = passes_peak(shape, state, passes)
    update = update_peak(shape, state)
    evaluated = MemoryParts()
    drawn = 0
    if evaluation.every is not None:
        drawn = evaluation.samples
        if evaluation.quality:
            drawn = max(drawn, micro)
        evaluated = evaluation_peak(experiment, data, shape, state, micro, drawn)
    host = state.host.total + copy + passes.host + encoders.host
    encoded_at_once = min(micro, AT_ONCE) if on_gpu else 1
    encoding = encoders.pass_bytes * encoded_at_once
    in_passes = larger_parts(in_passes, peak_during(state, encoding))
    if drawn:  # samples of an evaluation are decoded after they are drawn
        decoded_at_once = min(drawn, IMAGES_AT_A_TIME) if on_gpu else 1
        decoding = encoders.decoding_bytes * decoded_at_once
        evaluated = larger_parts(evaluated, peak_during(state, decoding))
    in_passes, update, evaluated = (
        replace(parts, encoders=encoders.weights) for parts in (in_passes, update, evaluated)
    )
    return WorkerMemory(in_passes, update, evaluated, host, state, copy)


def evaluation_peak(
    experiment: Experiment,
    data: DataShape,
    shape: WorkerShape,
    state: StateMemory,
    micro: int,
    drawn: int,
) -> MemoryParts:
    """Return the peak of an evaluation, of held-out batches of `micro` samples, or of `drawn`
    samples at once.
    """
    guided = 2 if getattr(experiment.sampling, "guidance", 1.0) != 1.0 else 1
    size = evaluation_memory(experiment, data, max(micro, guided * drawn))
    if shape.stage == 3 and shape.workers > 1:
        size += _gathered(shape)
    if experiment.keeps_average:
        size = max(size, min(MASTER * shape.share, EXCHANGED))
    return peak_during(state, size)
