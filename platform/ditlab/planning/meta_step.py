"""A training step on the meta device: shapes and dtypes of every tensor, no values, no memory.

Activations may wait in the host's memory for the backward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ditlab.planning.compiled_blocks import FusedAttention
from ditlab.planning.data_shape import DataShape
from ditlab.spec.experiment import Experiment

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class MetaNoise:
    """Random numbers without values (`denoisers.contract.NoiseSource`)."""

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor of a shape, float32."""
        return torch.empty(*shape, device="meta")

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        """Return a tensor of a shape, float32."""
        return torch.empty(*shape, device="meta")


class AnsweredReads(TorchDispatchMode):
    """Answers to reads of values, which meta tensors do not have: given integers in their order, true for booleans."""

    def __init__(self, integers: Sequence[int]) -> None:
        super().__init__()
        self._integers = iter(integers)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.ops.aten._local_scalar_dense.default:
            return function(*args, **(kwargs or {}))
        if args[0].dtype == torch.bool:
            return True
        return next(self._integers)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


@dataclass(frozen=True)
class MetaForm:
    """How a step is computed."""

    dtype: torch.dtype = torch.float32
    """Type of the parameters."""
    has_fused_attention: bool = False
    """True for attention as fused kernels compute it, False for the matrix products that torch's counter counts."""
    recomputes: bool = False
    """True where activations are checkpointed."""
    is_compiled: bool = False
    """True where blocks are compiled."""
    offloads: bool = False
    """True where activations wait in the host's memory."""


class MetaStep:
    """Network and loss of an experiment on the meta device, and a batch for them."""

    def __init__(self, experiment: Experiment, data: DataShape, form: MetaForm) -> None:
        """Build both. Raises ValueError for a loss that does not fit its model."""
        self._form, family = form, experiment.family
        self.dtype = dtype = form.dtype
        self.offloaded = OffloadedTensors()
        """Activations in the host's memory."""
        self._experiment, self._shapes = experiment, data.of_experiment(experiment)
        with torch.device("meta"):
            self.network: Any = family.build_network(experiment.model).to(dtype)  # type: ignore[attr-defined]
            self._objective: Any = family.build_objective(experiment.objective, experiment.model, data.text)
        if self._objective.modules is not None:
            self._objective.modules.to(dtype)
        if form.is_compiled:
            from ditlab.planning.compiled_blocks import compile_on_meta  # imports torch's compiler: 1 s

            compile_on_meta(self.network, f"{experiment.model!r} {dtype}")
        if form.recomputes or form.offloads:
            for module in self.network.checkpointed_modules():
                module.forward = partial(self._forward, module.forward)

    def modules(self) -> list[nn.Module]:
        """Return the modules that are trained: the network, then the loss' own."""
        return [self.network, *([] if self._objective.modules is None else [self._objective.modules])]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over all that is trained."""
        for module in self.modules():
            yield from module.parameters()

    def tensors(self) -> Iterator[Tensor]:
        """Iterate over parameters and buffers."""
        yield from self.parameters()
        yield from self.network.buffers()

    def batch(self, size: int) -> dict[str, Tensor]:
        """Return a batch of `size` samples, as the network and its loss take it."""
        fields = {each.name: getattr(torch, each.dtype) for each in self._experiment.batch_fields()}
        return {
            name: torch.empty(size, *shape, dtype=fields[name], device="meta") for name, shape in self._shapes.items()
        }

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Compute the weighted sum of the loss components of a batch, to be run inside `reading`."""
        components: dict[str, Tensor] = self._objective.loss(self.network, batch, MetaNoise())
        total = sum(self._objective.weights[name] * value for name, value in components.items())
        assert isinstance(total, Tensor)
        return total

    @contextmanager
    def reading(self, size: int) -> Iterator[None]:
        """Answer the loss' reads of values inside, for a batch of `size` samples, and create tensors without values."""
        integers = self._experiment.objective.typical_reads(self._experiment.model, size)
        with self._modes(), AnsweredReads(integers):
            yield

    @contextmanager
    def _modes(self) -> Iterator[None]:
        """Make tensors on the meta device inside, and compute attention as it should be."""
        with torch.device("meta"), FusedAttention() if self._form.has_fused_attention else nullcontext():
            yield

    def _forward(self, forward: Any, *inputs: Any, **named: Any) -> Any:
        """Compute a block whose activations are recomputed, or wait in the host's memory, as the engine does."""
        with self.offloaded.hooks() if self._form.offloads else nullcontext():
            if not self._form.recomputes:
                return forward(*inputs, **named)
            # Modes of functions are not active in a backward pass, where the block is computed again.
            contexts = partial(lambda modes: (nullcontext(), modes()), self._modes)
            return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)


@dataclass(frozen=True, eq=False)
class WaitingTensor:
    """Copy of a tensor in the host's memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class OffloadedTensors:
    """Count of the tensors that torch's `save_on_cpu` would keep in pinned memory, and a stand-in for it.

    Every tensor that an operation keeps is copied, parameters and those that were copied for another one included.
    """

    def __init__(self) -> None:
        self.live = 0
        """Bytes in the host's memory."""
        self.peak = 0
        """Most bytes that were there at once."""
        self.moved = 0
        """Bytes copied to the host so far; as many come back."""

    def hooks(self) -> AbstractContextManager[None]:
        """Keep what operations save inside in the host's memory."""
        hooks: AbstractContextManager[None] = saved_tensors_hooks(self._pack, self._unpack)
        return hooks

    def _pack(self, tensor: Tensor) -> WaitingTensor:
        self.moved += tensor.nbytes
        size = 1 << max(0, tensor.nbytes - 1).bit_length()  # torch takes pinned memory by powers of two
        waiting = WaitingTensor(tuple(tensor.shape), tensor.dtype)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(waiting, self._freed, size)
        return waiting

    def _freed(self, size: int) -> None:
        self.live -= size

    def _unpack(self, waiting: WaitingTensor) -> Tensor:
        return torch.empty(waiting.shape, dtype=waiting.dtype, device="meta")
