"""Names of DeepSpeed that are no part of its interface: the one file that uses them.

The import leaves out MLflow and a compiled Muon, which DeepSpeed loads and this engine never uses (4 s of 9).
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from ditlab.engine.phase_clock import PhaseClock
from ditlab.errors import UserError

TESTED = "0.19"
"""Version of DeepSpeed whose internals these are; 0.19.8 and newer."""
_lock = Lock()
_originals: list[Any] = []
"""Torch's own function, once for each open engine."""
_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def import_deepspeed() -> Any:
    """Import DeepSpeed without MLflow, which its autotuner takes if it is there, and without torch's compiler.

    Raises UserError for another version: its internals may lie elsewhere, and mean something else.
    """
    if "deepspeed.runtime.zero.muon.muon_optimizer" in sys.modules:
        return sys.modules["deepspeed"]
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _hidden("mlflow"):
            deepspeed = importlib.import_module("deepspeed")
        check_version(deepspeed.__version__)
        # Import DeepSpeed's Muon, whose class its ZeRO asks for, with kernels left uncompiled: nobody calls them.
        compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
        compile_of, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
        try:
            importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
        finally:
            compiler.compile = compile_of
    return deepspeed


def check_version(version: str) -> None:
    """Raise UserError for a version of DeepSpeed whose internals are not these."""
    if version.split("+")[0].rpartition(".")[0] != TESTED:
        raise UserError(
            f"deepspeed {version} is installed, and the engine uses internals of deepspeed {TESTED}; "
            f"pip install 'deepspeed>={TESTED}.8,<0.20'."
        )


class _HiddenPackage(MetaPathFinder):
    """Finder under which a package is not installed, for the imports of one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for the package; leave all others to the next finder."""
        if fullname == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """Hide a package from this thread's imports; another thread may import it meanwhile."""
    finder = _HiddenPackage(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def time_collectives(engine: Any, stage: int, clock: PhaseClock) -> None:
    """Count the reduction of gradients, and with ZeRO-3 the gathering of parameters, as the phase `reduce`."""
    engine.allreduce_gradients = clock.reducing(engine.allreduce_gradients)
    optimizer = engine.optimizer
    if stage in (1, 2):
        optimizer.reduce_ipg_grads = clock.reducing(optimizer.reduce_ipg_grads)
    elif stage == 3:
        reduce = "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads"
        setattr(optimizer, reduce, clock.reducing(getattr(optimizer, reduce)))
        coordinator = optimizer.parameter_offload.get_param_coordinator()
        coordinator.fetch_sub_module = clock.reducing(coordinator.fetch_sub_module)


@contextmanager
def partitioned_linear() -> Iterator[None]:
    """Compute `torch.nn.functional.linear` with partitioned weights, inside and until the last of several is left."""
    import_deepspeed()
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    with _lock:
        _originals.append(_originals[0] if _originals else functional.linear)
        functional.linear = zero3_linear_wrap
    try:
        yield
    finally:
        with _lock:
            original = _originals.pop()
            if not _originals:
                functional.linear = original


def release(module: nn.Module) -> None:
    """Drop gradients, and finish or drop the transfers of a pass that an exception interrupted."""
    _leave_forward_pass(module)
    inflight: Any = getattr(module, "ds_inflight_param_registry", None)
    if inflight is not None:
        for handle in list(inflight.values()):
            handle.wait()
        inflight.clear()
    parameter: Any
    for parameter in module.parameters():
        parameter.grad = None
        if hasattr(parameter, "grad_accum"):
            parameter.grad_accum = None
        if hasattr(parameter, "ds_status"):
            parameter.ds_active_sub_modules.clear()
            if parameter.ds_status.name == "AVAILABLE":
                parameter.partition()


def _leave_forward_pass(module: nn.Module) -> None:
    """Remove the module from DeepSpeed's stack of forward passes under way, where a root stays for good.

    It is a global list: the network of every closed ZeRO-3 engine would stay in memory.
    """
    import_deepspeed()
    from deepspeed.runtime.zero import parameter_offload

    own = set(module.modules())
    parameter_offload.FWD_MODULE_STACK[:] = [each for each in parameter_offload.FWD_MODULE_STACK if each not in own]
    for each in own:
        parameters: Any = each._parameters
        if isinstance(parameters, parameter_offload.ZeROOrderedDict):
            parameters._in_forward = False  # or reading a parameter would gather it and look for the pass in the stack


def skip_lone_reduction(engine: Any) -> None:
    """Leave gradients where they are: a worker alone, at stage 0, has nobody to reduce them with."""
    engine.enable_backward_allreduce = False


def skip_probes(deepspeed: Any) -> None:
    """Tell DeepSpeed which of its extensions this machine has: none, so that nothing is probed or built."""
    vars(deepspeed.ops)["__compatible_ops__"] = {}


def forget_process_group() -> bool:
    """Destroy the process group by DeepSpeed's handle of it; False where DeepSpeed has none.

    The next group of this process would be taken for the old one.
    """
    comm: Any = sys.modules.get("deepspeed.comm.comm")  # only what imported DeepSpeed has a handle of its
    if comm is None or comm.cdb is None:
        return False
    comm.destroy_process_group()
    comm.cdb = None
    return True


def scaler_state(engine: Any) -> dict[str, float]:
    """Return the state of float16's loss scale; {} without one."""
    scaler = getattr(engine.optimizer, "loss_scaler", None) if engine.fp16_enabled() else None
    return {key: float(getattr(scaler, key)) for key in _SCALER_STATE} if scaler else {}


def load_scaler(engine: Any, saved: Mapping[str, int]) -> None:
    """Load a state of float16's loss scale."""
    for key in _SCALER_STATE:
        if key in saved:
            setattr(engine.optimizer.loss_scaler, key, saved[key])


def whole_shape(tensor: Any) -> torch.Size:
    """Return the shape of the whole tensor, whose local part ZeRO-3 leaves empty."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


def held_shard(parameter: Any) -> Tensor | None:
    """Return this worker's shard of a parameter of ZeRO-3; None for a parameter that is whole."""
    return getattr(parameter, "ds_tensor", None)


class GradientNorm:
    """Norm of the gradient, measured between the last backward pass of a step and its update."""

    def __init__(self, engine: Any, stage: int, offloaded: bool, world_size: int) -> None:
        self._engine, self._optimizer = engine, engine.optimizer
        self._stage, self._offloaded, self._world_size = stage, offloaded, world_size
        if stage == 3:
            self._norms, unmeasured = self._optimizer._get_norm_groups, lambda: [torch.zeros(())]
            self._optimizer._get_norm_groups = unmeasured
        elif offloaded:
            self._norms = lambda scaled=self._optimizer.scaled_global_norm: [scaled()]
            self._optimizer.scaled_global_norm = lambda: torch.zeros(())

    def measure(self) -> Tensor:
        """Return the L2 norm, 0-dim, float32, equal on all workers; NaN or infinite where any part of it is."""
        scale = self._optimizer.loss_scale if self._engine.fp16_enabled() else 1.0
        if self._offloaded:
            # Measured by DeepSpeed on its way to the CPU. It returns -1 for a gradient that is not finite.
            norms = torch.stack([norm.float().cpu() for norm in self._norms()])
            return torch.where(norms < 0, math.nan, norms).norm() / scale
        if self._stage == 0:
            parts = [each.grad for each in self._engine.module.parameters() if each.grad is not None]
        else:
            parts = [part for flat in self._optimizer.averaged_gradients.values() for part in flat]
        norm = torch.stack(torch._foreach_norm(parts, 2, dtype=torch.float32)).norm()
        if self._stage and self._world_size > 1:
            square = norm.square()
            distributed.all_reduce(square)
            norm = square.sqrt()
        return norm / scale if scale != 1.0 else norm


@dataclass(frozen=True)
class ParameterSlice:
    """Slice `name[start:stop]` of a flattened parameter, at `flats[flat][offset : offset + stop - start]`."""

    name: str
    start: int
    stop: int
    flat: int
    offset: int

    def of(self, flat: Tensor) -> Tensor:
        return flat.view(-1)[self.offset : self.offset + self.stop - self.start]


Layout = tuple[list[Tensor], list[list[str]], list[ParameterSlice]]


def lay_out(engine: Any, stage: int) -> Layout:
    """Return the flat partitions of an engine's optimiser, the parameters that each is a part of, and their slices."""
    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    return {0: _whole, 1: _sliced, 2: _sliced, 3: _sharded}[stage](engine.optimizer, names)


def _whole(optimizer: Any, names: dict[Tensor, str]) -> Layout:
    """Lay out stage 0: the parameters themselves, on every worker; each worker counts as the owner of all."""
    flats = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    slices = [ParameterSlice(names[flat], 0, flat.numel(), index, 0) for index, flat in enumerate(flats)]
    return flats, [[names[flat]] for flat in flats], slices


def _sliced(optimizer: Any, names: dict[Tensor, str]) -> Layout:
    """Lay out stages 1 and 2: each group is a flat buffer, cut into equal ranges, one a worker, across parameters.

    A parameter's place in the buffer is read from its address, which holds whatever order and padding DeepSpeed chose.
    """
    flats, slices = list(optimizer.single_partition_of_fp32_groups), []
    for index, (flat, buffer) in enumerate(zip(flats, optimizer.bit16_groups_flat, strict=True)):
        rank = torch.distributed.get_rank(group=optimizer.real_dp_process_group[index])
        low, high = rank * flat.numel(), (rank + 1) * flat.numel()
        for parameter in optimizer.bit16_groups[index]:
            begin = (parameter.data_ptr() - buffer.data_ptr()) // buffer.element_size()
            start, stop = max(begin, low), min(begin + parameter.numel(), high)
            if start < stop:
                slices.append(ParameterSlice(names[parameter], start - begin, stop - begin, index, start - low))
    return flats, _members(optimizer.bit16_groups, names), slices


def _sharded(optimizer: Any, names: dict[Tensor, str]) -> Layout:
    """Lay out stage 3: each parameter is cut into equal shards, one a worker, the last padded, stored end to end."""
    flats, slices = list(optimizer.fp32_partitioned_groups_flat), []
    rank = torch.distributed.get_rank()
    for index, group in enumerate(optimizer.fp16_groups):
        offset = 0
        for parameter in group:
            shard = parameter.partition_numel()
            start, stop = rank * shard, min((rank + 1) * shard, parameter.ds_numel)
            if start < stop:
                slices.append(ParameterSlice(names[parameter], start, stop, index, offset))
            offset += shard
    return flats, _members(optimizer.fp16_groups, names), slices


def _members(groups: Sequence[Sequence[Tensor]], names: dict[Tensor, str]) -> list[list[str]]:
    return [[names[parameter] for parameter in group] for group in groups]


def is_swapped(optimizer: Any, index: int) -> bool:
    """Return True if a flat of ZeRO-3 and its moments are kept in files."""
    return bool(optimizer._swappable_optimizer_subgroup(index))


def swap_in(optimizer: Any, index: int) -> None:
    """Read a flat and its moments from files."""
    optimizer._optimizer_states_and_gradient_swap_in(index)


def swap_out(optimizer: Any, index: int, rewritten: bool) -> None:
    """Drop a flat and its moments from memory, written back where they were changed."""
    if rewritten:
        optimizer._optimizer_states_and_gradient_swap_out(index)
    else:
        optimizer._release_swap_buffers(index)


@contextmanager
def rewriting_masters(optimizer: Any, stage: int) -> Iterator[None]:
    """Update the weights that the network computes with from master weights that are written inside."""
    if stage == 3:
        optimizer.checkpoint_event_prologue()
    yield
    if stage in (1, 2):
        optimizer.update_lp_params()
    elif stage == 3:
        optimizer.checkpoint_event_epilogue()


def take_rewritten(optimizer: Any, index: int) -> None:
    """Update the parameters of a flat of ZeRO-3 that was written."""
    optimizer._reassign_or_swap_out_partitioned_parameters(index)
