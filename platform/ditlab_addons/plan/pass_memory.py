"""Memory of a forward and a backward pass, traced on the meta device tensor by tensor."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ditlab.inputs.meta_step import DTYPES, DataShape, MetaStep
from ditlab.spec.experiment import Experiment
from ditlab_models.contract import ANY


class LiveBytes(TorchDispatchMode):
    """Count of the bytes of live tensors of one device in this thread, its backward passes
    included.
    """

    def __init__(self, device: str) -> None:
        """Count tensors of a type of device: `cpu`, `cuda` or `meta`."""
        super().__init__()
        self._device = device
        self.live = 0
        """Bytes alive."""
        self.peak = 0
        """Most bytes that were alive at once since the start."""
        self.operations = 0
        """Operations so far."""
        self._sizes: dict[int, tuple[weakref.ref[Any], int]] = {}

    def add(self, tree: Any) -> None:
        """Count the storage of every tensor that a container holds, if it is not counted yet, or
        its new size.
        """
        for tensor in tree_iter(tree):
            if not isinstance(tensor, Tensor) or tensor.device.type != self._device:
                continue
            storage = tensor.untyped_storage()
            key = id(storage)
            size = storage.nbytes()
            reference, before = self._sizes.get(key, (None, 0))
            self._sizes[key] = reference or weakref.ref(storage, partial(self._freed, key)), size
            self.live += size - before
            self.peak = max(self.peak, self.live)

    def _freed(self, key: int, _: Any) -> None:
        self.live -= self._sizes.pop(key)[1]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operations += 1
        self.add((args, kwargs))
        result = function(*args, **(kwargs or {}))
        self.add(result)
        return result


class FusedKernels(TorchFunctionMode):
    """Kernels that keep less than what they are made of: attention by CPUs' fused kernel, which
    keeps as much as GPUs' and not the matrix of queries by keys, and on a GPU RMSNorm, which keeps
    no wide copies there."""

    def __init__(self, on_gpu: bool = False) -> None:
        super().__init__()
        self._on_gpu = on_gpu

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is nn.functional.scaled_dot_product_attention:
            function = self._attend
        elif function is nn.functional.rms_norm and self._on_gpu:
            given = (*args, *(kwargs or {}).values())
            return _FusedNorm.apply(given[0], given[2])
        return function(*args, **(kwargs or {}))

    @staticmethod
    def _attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
    ) -> Tensor:
        if options.pop("enable_gqa", False):
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (each.repeat_interleave(repeats, -3) for each in (key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output: Tensor = kernel(query, key, value, attn_mask=attn_mask, **options)[0]
        return output


class _FusedNorm(torch.autograd.Function):
    """Sizes of a GPU's RMSNorm: rows are kept as they came, with a float32 each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(
            None if each is None else torch.empty_like(each) for each in ctx.saved_tensors[:2]
        )


class TracedStep(MetaStep):
    """Step with fused kernels, whose activations may wait in the host's memory."""

    def __init__(
        self,
        experiment: Experiment,
        data: DataShape,
        dtype: torch.dtype,
        recomputes: bool = False,
        offloads: bool = False,
        on_gpu: bool = False,
    ) -> None:
        self.moved = 0
        """Bytes of activations that were copied to the host."""
        self.host = 0
        """Bytes that they take there: torch takes pinned memory by powers of two."""
        self._kernels = FusedKernels(on_gpu)
        super().__init__(experiment, data, dtype, recomputes)
        if offloads:
            for module in self.network.checkpointed_modules():
                module.forward = partial(self._offloaded, module.forward)

    def tensors(self) -> list[Tensor]:
        """Return all that is trained, and the network's buffers."""
        return [
            *(each for module in self.modules() for each in module.parameters()),
            *self.network.buffers(),
        ]

    @contextmanager
    def modes(self) -> Iterator[None]:
        with super().modes(), self._kernels:
            yield

    def _offloaded(self, forward: Any, *inputs: Any, **named: Any) -> Any:
        with saved_tensors_hooks(self._pack, self._unpack):
            return forward(*inputs, **named)

    def _pack(self, tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
        """Count a kept tensor that torch's `save_on_cpu` would copy, and let it go."""
        self.moved += tensor.nbytes
        self.host += 1 << max(0, tensor.nbytes - 1).bit_length()
        return tensor.shape, tensor.dtype

    def _unpack(self, packed: tuple[torch.Size, torch.dtype]) -> Tensor:
        return torch.empty(packed[0], dtype=packed[1], device="meta")


@dataclass(frozen=True)
class PassMemory:
    """Bytes of one micro-batch's passes, beside the parameters and whatever is there between
    passes.
    """

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
    """Trace the passes of a micro-batch of `size` samples as the engine computes them, compilation
    apart; kept for the process. Raises ValueError for a loss that does not fit its model."""
    dtype = DTYPES[experiment.training.precision]
    recomputes = experiment.engine.activation_checkpointing
    # on a CPU they are there already
    offloads = on_gpu and experiment.engine.activation_offload == "cpu"
    key = data.step_key(experiment, size, dtype, recomputes, offloads, on_gpu)
    if key in _traces:
        return _traces[key]
    step = TracedStep(experiment, data, dtype, recomputes, offloads, on_gpu)
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
        activations,
        tracker.most - before,
        tracker.taken_at_most,
        tracker.peak - before,
        tracker.operations,
        step.host,
        step.moved,
    )
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
            self.most = self.live + self.taken
            self.taken_at_most = self.taken


_evaluations: dict[str, int] = {}


def evaluation_memory(experiment: Experiment, data: DataShape, size: int) -> int:
    """Trace a forward pass of `size` samples without gradients: the most bytes at once beside the
    parameters.

    The larger one of a pass of the loss and, where the spec alone decides the sizes, a pass of the
    network that keeps its whole output, as samplers do. Kept for the process.
    """
    dtype = DTYPES[experiment.training.precision]
    key = data.step_key(experiment, size, dtype)
    if key not in _evaluations:
        step = TracedStep(experiment, data, dtype)
        tracker = LiveBytes("meta")
        tracker.add(step.tensors())
        before = tracker.live
        with step.reading(size), tracker, torch.no_grad():
            step.loss(step.batch(size))
            if not any(ANY in field.shape for field in experiment.batch_fields()):
                inputs = experiment.family.example_inputs(experiment.model, size)
                step.network(
                    *(each.to(dtype) if each.is_floating_point() else each for each in inputs)
                )
        _evaluations[key] = tracker.peak - before
    return _evaluations[key]
