"""Memory of one worker at its peak: in the passes, in the update, in an evaluation; and of its host."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

from ditlab.planning.frozen_encoders import EncoderWork
from ditlab.planning.pass_memory import PassMemory
from ditlab.planning.state_memory import (
    KEPT_GATHERED,
    MASTER,
    MOST_GATHERED,
    PREFETCHED,
    SUB_GROUP,
    ParameterSizes,
    StateMemory,
    ZeroSetting,
)
from ditlab.spec.engine import LARGEST_BUCKET
from ditlab.spec.optimisation.optimisers import GATHERED_VALUES

EXCHANGED = 2**26
"""Bytes that are copied at once when averaged weights are swapped in for an evaluation."""


@dataclass(frozen=True)
class MemoryParts:
    """Bytes on one device at a peak, by what holds them."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    """Kept from the forward to the backward pass."""
    workspace: int
    """Temporary tensors, the loss' among them, and buffers of the engine."""
    encoders: int = 0
    """Weights of frozen encoders."""

    @property
    def total(self) -> int:
        """All together."""
        return sum(astuple(self))


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
    """Host memory of offloaded state and of the checkpoint's copy; 0 where the device is the host."""

    @property
    def peak(self) -> MemoryParts:
        """The largest of the three."""
        return max((self.passes, self.update, self.evaluation), key=lambda parts: parts.total)

    @property
    def peak_phase(self) -> str:
        """Name of the largest of the three."""
        return next(name for name in ("passes", "update", "evaluation") if getattr(self, name) is self.peak)


@dataclass(frozen=True)
class WorkerShape:
    """Facts that decide a worker's memory beside its state and its passes."""

    setting: ZeroSetting
    workers: int
    compute: int
    """Bytes of a value of the compute dtype."""
    accumulates: bool
    """True where a worker's step has several micro-batches."""
    on_gpu: bool


def passes_peak(sizes: ParameterSizes, state: StateMemory, passes: PassMemory, shape: WorkerShape) -> MemoryParts:
    """Return the peak of forward and backward passes, or of the reduction of gradients behind them."""
    stage, compute, several = shape.setting.stage, shape.compute, shape.workers > 1
    gradients, share = compute * sizes.total, compute * sizes.share(stage, shape.workers)
    bucket = compute * min(sizes.total, LARGEST_BUCKET)
    # On GPUs, and wherever state is offloaded, stages 1 and 2 copy gradients into one contiguous bucket.
    contiguous = stage in (1, 2) and (shape.on_gpu or shape.setting.offload != "none")
    fresh = _during(state, passes.peak, passes.gradients_at_peak, passes.activations)
    dropped = _during(state, passes.peak_without_gradients, 0, passes.activations)
    if stage == 3:
        gathered = _gathered(sizes, shape) if several or shape.setting.offload_parameters != "none" else 0
        copies = bucket + share if shape.on_gpu else 2 * bucket
        return _largest(_with(dropped, workspace=gathered), _during(state, copies, 0, 0))
    kept = share if stage == 2 and shape.accumulates and shape.setting.offload == "none" else 0
    if stage == 2 and contiguous:
        reduced = _during(state, gradients, gradients, 0)
        return _with(_largest(dropped, reduced), gradients=kept, workspace=bucket)
    candidates = [fresh]
    if stage < 2 and shape.accumulates:
        candidates.append(_with(dropped, gradients=gradients))
    if several or (stage == 2 and shape.accumulates):
        copies = (share if stage == 1 else 0) if contiguous else bucket
        if not several and compute == MASTER:
            copies = 0  # one worker's gradients are their own mean
        candidates.append(_during(state, gradients + copies, gradients, 0))
    return _with(_largest(*candidates), gradients=kept, workspace=bucket if contiguous else 0)


def update_peak(sizes: ParameterSizes, state: StateMemory, shape: WorkerShape) -> MemoryParts:
    """Return the peak of the update: the partition's gradients, once more as a flat tensor, once more in float32."""
    stage, compute = shape.setting.stage, shape.compute
    gathered = _orthogonalising(sizes, shape.workers)
    at_rest = _during(state, 0, 0, 0)
    if stage == 0:
        return _with(at_rest, gradients=compute * sizes.total, workspace=gathered)
    if shape.setting.offload != "none":
        return at_rest
    share = sizes.share(stage, shape.workers)
    flat = compute + (MASTER if compute != MASTER else 0)
    if stage < 3:
        flattened = _with(at_rest, gradients=compute * share, workspace=flat * share)
        return _largest(flattened, _with(at_rest, workspace=MASTER * share + gathered))
    whole = compute * sizes.small if shape.workers > 1 else 0  # small parameters are partitioned anew before it
    updated = _with(at_rest, workspace=flat * min(share, SUB_GROUP) - whole + gathered)
    return _largest(at_rest, updated)


def evaluation_peak(
    sizes: ParameterSizes, state: StateMemory, pass_bytes: int, has_average: bool, shape: WorkerShape
) -> MemoryParts:
    """Return the peak of an evaluation whose largest forward pass takes `pass_bytes`."""
    share = MASTER * sizes.share(shape.setting.stage, shape.workers)
    exchanged = min(share, EXCHANGED) if has_average else 0
    gathered = _gathered(sizes, shape) if shape.setting.stage == 3 and shape.workers > 1 else 0
    return _during(state, max(exchanged, pass_bytes + gathered), 0, 0)


def with_encoders(memory: WorkerMemory, state: StateMemory, encoders: EncoderWork, at_once: int) -> WorkerMemory:
    """Add frozen encoders to a worker: weights always, and a pass of `at_once` samples before the network's."""
    if not encoders.weights:
        return memory
    passes, update, evaluation = (
        replace(parts, encoders=encoders.weights)
        for parts in (
            _largest(memory.passes, _during(state, encoders.pass_bytes * at_once, 0, 0)),
            memory.update,
            memory.evaluation,
        )
    )
    return WorkerMemory(passes, update, evaluation, memory.host + encoders.host)


def _orthogonalising(sizes: ParameterSizes, workers: int) -> int:
    """Bytes in which Muon orthogonalises: a square matrix takes five of its size; several workers gather and send."""
    gathered = min(math.ceil(sizes.orthogonalised / workers), max(GATHERED_VALUES, sizes.largest_orthogonalised))
    return MASTER * (5 * sizes.largest_orthogonalised + (2 * gathered if workers > 1 else 0))


def _gathered(sizes: ParameterSizes, shape: WorkerShape) -> int:
    """Bytes of parameters that ZeRO-3 gathers: whole ones, and the flat buffers of those on their way."""
    values = sizes.total - sizes.small
    largest = sizes.largest if sizes.largest >= KEPT_GATHERED else 0
    return shape.compute * (min(values, MOST_GATHERED) + min(values, PREFETCHED + largest))


def _during(state: StateMemory, more: int, gradients: int, activations: int) -> MemoryParts:
    """Add `more` bytes to the state: finished gradients and activations among them, and the rest is workspace."""
    kept = min(activations, more - gradients)
    return MemoryParts(
        parameters=state.parameters,
        gradients=state.gradients + gradients,
        optimizer=state.optimizer,
        average=state.average,
        activations=kept,
        workspace=state.buffers + more - gradients - kept,
    )


def _with(parts: MemoryParts, gradients: int = 0, workspace: int = 0) -> MemoryParts:
    return MemoryParts(
        parts.parameters, parts.gradients + gradients, parts.optimizer, parts.average, parts.activations,
        parts.workspace + workspace,
    )  # fmt: skip


def _largest(*candidates: MemoryParts) -> MemoryParts:
    return max(candidates, key=lambda parts: parts.total)
