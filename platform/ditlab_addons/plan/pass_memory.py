"""Memory of a forward and a backward pass, traced on the meta device tensor by tensor."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ditlab.inputs.meta_step import DTYPES, DataShape, FusedKernels, MetaStep
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import ANY


class LiveBytes(TorchDispatchMode):
    """Count of the bytes of live tensors of one device in this thread, its backward passes included."""

    def __init__(self, device: str) -> None:
        """Count tensors of a type of device: `cpu`, `cuda` or `meta`."""
        super().__init__()
        self._device = device
        self.live = 0
        """Bytes alive."""
        self.peak = 0
        """Most bytes that were alive at once since the start, or `restart`."""
        self.operations = 0
        """Operations so far."""
        self._sizes: dict[int, tuple[weakref.ref[Any], int]] = {}

    def restart(self) -> None:
        """Begin the peak again, at what is alive."""
        self.peak = self.live

    def add(self, tree: Any) -> None:
        """Count the storage of every tensor that a container holds, if it is not counted yet, or its new size."""
        for tensor in tree_iter(tree):
            if not isinstance(tensor, Tensor) or tensor.device.type != self._device:
                continue
            storage = tensor.untyped_storage()
            key, size = id(storage), storage.nbytes()
            reference, before = self._sizes.get(key, (None, 0))
            self._sizes[key] = reference or weakref.ref(storage, partial(self._freed, key)), size
            self.live += size - before
            self.peak = max(self.peak, self.live)

    def _freed(self, key: int, _: Any) -> None:
        self.live -= self._sizes.pop(key)[1]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        self.add((args, kwargs))
        result = function(*args, **(kwargs or {}))
        self.add(result)
        return result


@dataclass(frozen=True)
class PassMemory:
    """Bytes of one micro-batch's passes, beside the parameters and whatever is there between passes."""

    activations: int
    """Alive at the end of the forward pass: what the backward pass needs, and the batch."""
    peak: int
    """Most at once, where every gradient that is computed stays: a step's first passes."""
    gradients_at_peak: int
    """Gradients that are finished at that peak, and part of it."""
    peak_without_gradients: int
    """Most at once, where a finished gradient goes at once into memory that is there already."""
    operations: int
    """Operations that are done one after the other, each at least a kernel."""
    host: int
    """Bytes that activations take in the host's memory, beside the device's."""
    moved: int
    """Bytes of activations that are copied to the host; as many come back."""


_traces: dict[str, PassMemory] = {}


def pass_memory(experiment: Experiment, data: DataShape, size: int, on_gpu: bool) -> PassMemory:
    """Trace the passes of a micro-batch of `size` samples as the engine computes them, compilation apart; kept for
    the process. Raises ValueError for a loss that does not fit its model."""
    dtype = DTYPES[experiment.training.precision]
    recomputes = experiment.engine.activation_checkpointing
    offloads = on_gpu and experiment.engine.activation_offload == "cpu"  # on a CPU they are there already
    key = data.step_key(experiment, size, dtype, recomputes, offloads, on_gpu)
    if key in _traces:
        return _traces[key]
    kernels = FusedKernels(on_gpu)
    step = MetaStep(experiment, data, dtype, kernels=kernels, recomputes=recomputes, offloads=offloads)
    tracker = _PassTracker("meta")
    tracker.add(step.tensors())
    before = tracker.live
    for module in step.modules():
        for parameter in filter(lambda each: each.requires_grad, module.parameters()):
            parameter.register_post_accumulate_grad_hook(tracker.take)
    with step.reading(size), tracker:
        batch = step.batch(size)
        tracker.add(batch)
        total = step.loss(batch)
        activations = tracker.live - before
        total.backward()
    _traces[key] = PassMemory(
        activations, tracker.most - before, tracker.taken_at_most, tracker.peak - before, tracker.operations,
        step.host, step.moved,
    )  # fmt: skip
    return _traces[key]


class _PassTracker(LiveBytes):
    """Count of live bytes without finished gradients, and of the most bytes with them."""

    taken = most = taken_at_most = 0

    def take(self, parameter: Tensor) -> None:
        """Take a finished gradient away."""
        assert parameter.grad is not None
        self.taken += parameter.grad.nbytes
        parameter.grad = None

    def add(self, tree: Any) -> None:
        super().add(tree)
        if self.live + self.taken > self.most:
            self.most, self.taken_at_most = self.live + self.taken, self.taken


_evaluations: dict[str, int] = {}


def evaluation_memory(experiment: Experiment, data: DataShape, size: int) -> int:
    """Trace a forward pass of `size` samples without gradients: the most bytes at once beside the parameters.

    The larger one of a pass of the loss and, where the spec alone decides the sizes, a pass of the network that keeps
    its whole output, as samplers do. Kept for the process.
    """
    dtype = DTYPES[experiment.training.precision]
    key = data.step_key(experiment, size, dtype)
    if key not in _evaluations:
        step = MetaStep(experiment, data, dtype, kernels=FusedKernels())
        tracker = LiveBytes("meta")
        tracker.add(step.tensors())
        before = tracker.live
        with step.reading(size), tracker, torch.no_grad():
            step.loss(step.batch(size))
            if not any(ANY in field.shape for field in experiment.batch_fields()):
                inputs = experiment.family.example_inputs(experiment.model, size)
                step.network(*(each.to(dtype) if each.is_floating_point() else each for each in inputs))
        _evaluations[key] = tracker.peak - before
    return _evaluations[key]
