"""Names of DeepSpeed that are no part of its interface: the one file that uses them.

The import skips MLflow and a compiled Muon, which DeepSpeed loads and this engine never uses
(4 s of 9). ZeRO flattens parameters into partitions whose layout depends on stage and number of
workers. As slices `name[start:stop]` of flattened parameters, the state is the same for every
layout, and a checkpoint of such slices loads into any other.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from threading import Lock
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from ditlab.engine.phase_clock import PhaseClock
from ditlab.errors import UserError

TESTED = "0.19"
"""Version of DeepSpeed whose internals these are; 0.19.8 and newer."""
_lock = Lock()
_linear = functional.linear
"""Torch's own function."""
_num_partitioned = 0  # contexts of `partitioned_linear` that are open
_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def import_deepspeed() -> Any:
    """Import DeepSpeed without MLflow, which its autotuner takes if it is there, and without
    torch's compiler.

    Raises UserError for another version: its internals may lie elsewhere, and mean something else.
    """
    deepspeed: Any = sys.modules.get("deepspeed")
    if "deepspeed.runtime.zero.muon.muon_optimizer" not in sys.modules:
        deepspeed = _import_light()
    # Told that this machine has none of its extensions, it probes (by compiler runs) and builds
    # nothing: they are a shared-memory all-reduce and its own optimisers, in whose place gloo and
    # torch's fused AdamW serve.
    vars(deepspeed.ops)["__compatible_ops__"] = {}
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.WARNING)
    if not logger.filters:  # it has not tested Muon on its partitions: our tests have
        logger.addFilter(lambda record: "untested optimizer" not in record.getMessage())
    return deepspeed


def _import_light() -> Any:
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finder = _WithoutMlflow()
        sys.meta_path.insert(0, finder)
        try:
            deepspeed: Any = importlib.import_module("deepspeed")
        finally:
            sys.meta_path.remove(finder)
        check_version(deepspeed.__version__)
        # Import DeepSpeed's Muon, whose class its ZeRO asks for, with kernels left uncompiled:
        # nobody calls them.
        compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
        compile_of = compiler.compile
        compiler.compile = lambda: compiler.dummy_decorator
        try:
            importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
        finally:
            compiler.compile = compile_of
    return deepspeed


def check_version(version: str) -> None:
    """Raise UserError for a version of DeepSpeed whose internals are not these."""
    if version.split("+")[0].rpartition(".")[0] != TESTED:
        raise UserError(
            f"deepspeed {version} is installed, and the engine uses internals of deepspeed "
            f"{TESTED}; pip install 'deepspeed>={TESTED}.8,<0.20'."
        )


class _WithoutMlflow(MetaPathFinder):
    """Finder under which MLflow is not installed, for this thread's imports; another thread may
    import it meanwhile.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, *_: Any) -> None:
        """Raise ModuleNotFoundError for MLflow; leave all others to the next finder."""
        if fullname == "mlflow" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def time_collectives(engine: Any, stage: int, clock: PhaseClock) -> None:
    """Count the reduction of gradients, and with ZeRO-3 the gathering of parameters, as the phase
    `reduce`.
    """

    def timed(owner: Any, method: str) -> None:
        setattr(owner, method, clock.reducing(getattr(owner, method)))

    optimizer = engine.optimizer
    timed(engine, "allreduce_gradients")
    if stage in (1, 2):
        timed(optimizer, "reduce_ipg_grads")
    elif stage == 3:
        timed(optimizer, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads")
        timed(optimizer.parameter_offload.get_param_coordinator(), "fetch_sub_module")


@contextmanager
def partitioned_linear() -> Iterator[None]:
    """Compute `torch.nn.functional.linear` with partitioned weights, inside and until the last of
    several is left.
    """
    global _num_partitioned
    import_deepspeed()
    from deepspeed.runtime.zero.linear import zero3_linear_wrap

    with _lock:
        _num_partitioned += 1
        functional.linear = zero3_linear_wrap
    try:
        yield
    finally:
        with _lock:
            _num_partitioned -= 1
            if not _num_partitioned:
                functional.linear = _linear


def release(module: nn.Module) -> None:
    """Drop gradients, and finish or drop the transfers of a pass that an exception interrupted."""
    import_deepspeed()
    from deepspeed.runtime.zero import parameter_offload

    # The stack of forward passes under way is a global list, where a root stays for good: without
    # this the network of every closed ZeRO-3 engine would stay in memory.
    own = set(module.modules())
    parameter_offload.FWD_MODULE_STACK[:] = [
        each for each in parameter_offload.FWD_MODULE_STACK if each not in own
    ]
    for each in own:
        parameters: Any = each._parameters
        if isinstance(parameters, parameter_offload.ZeROOrderedDict):
            # or reading a parameter would gather it and look for the pass in the stack
            parameters._in_forward = False
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


def release_process_group() -> None:
    """Destroy the process group, and DeepSpeed's handle of it where DeepSpeed was used."""
    # only what imported DeepSpeed has a handle of its
    comm: Any = sys.modules.get("deepspeed.comm.comm")
    if comm is not None and comm.cdb is not None:
        comm.destroy_process_group()
        comm.cdb = None  # or the next group of this process would be taken for the old one
    elif distributed.is_initialized():
        distributed.destroy_process_group()


def scaler_state(engine: Any) -> dict[str, float]:
    """Return the state of float16's loss scale; {} without one."""
    scaler = None
    if engine.fp16_enabled():
        scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler:
        return {key: float(getattr(scaler, key)) for key in _SCALER_STATE}
    return {}


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
        self._engine = engine
        self._optimizer = engine.optimizer
        self._stage = stage
        self._offloaded = offloaded
        self._world_size = world_size
        if stage == 3:
            self._norms = self._optimizer._get_norm_groups
            self._optimizer._get_norm_groups = lambda: [torch.zeros(())]
        elif offloaded:
            scaled_norm = self._optimizer.scaled_global_norm
            self._norms = lambda: [scaled_norm()]
            self._optimizer.scaled_global_norm = lambda: torch.zeros(())

    def measure(self) -> Tensor:
        """Return the L2 norm, 0-dim, float32, equal on all workers; NaN or infinite where any part
        of it is.
        """
        scale = self._optimizer.loss_scale if self._engine.fp16_enabled() else 1.0
        if self._offloaded:
            # Measured by DeepSpeed on its way to the CPU. It returns -1 for a gradient that is not
            # finite.
            norms = torch.stack([norm.float().cpu() for norm in self._norms()])
            return torch.where(norms < 0, math.nan, norms).norm() / scale
        if self._stage == 0:
            parts = [
                each.grad for each in self._engine.module.parameters() if each.grad is not None
            ]
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
    """Slice `name[start:stop]` of a flattened parameter, at `offset` of a flat partition."""

    name: str
    start: int
    stop: int
    offset: int

    def of(self, flat: Tensor) -> Tensor:
        return flat.view(-1)[self.offset : self.offset + self.stop - self.start]


class FrozenParameters:
    """Parameters that take no gradient, of which each worker holds a slice for the state; at stage
    0 all of them.

    They stay in the precision that the network computes in, and have neither master weights nor
    averages.
    """

    def __init__(self, module: nn.Module, stage: int) -> None:
        self._parts: list[tuple[Any, ParameterSlice]] = []
        self._num_shards = 1
        rank = 0
        if stage:
            self._num_shards = distributed.get_world_size()
            rank = distributed.get_rank()
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                continue
            numel = whole_shape(parameter).numel()
            shard = math.ceil(numel / self._num_shards)  # as ZeRO-3 cuts it
            start = min(rank * shard, numel)
            part = ParameterSlice(name, start, min(start + shard, numel), start)
            self._parts.append((parameter, part))

    def slices(self) -> Iterator[tuple[ParameterSlice, Tensor]]:
        """Yield this worker's slices and their values, views; none that are empty."""
        for parameter, part in self._parts:
            if part.start == part.stop:
                continue
            shard = held_shard(parameter)
            if shard is None:
                yield part, part.of(parameter.detach())
            else:
                yield part, shard.view(-1)[: part.stop - part.start]

    def load(self, read: Callable[[str, str, int, int], Tensor]) -> None:
        """Set all whole parameters, each worker reading its own slices. All workers must call."""
        from deepspeed.runtime.zero.partition_parameters import GatheredParameters

        for parameter, part in self._parts:
            own = read("frozen", part.name, part.start, part.stop)
            with GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
                whole = parameter.view(-1)
                if self._num_shards == 1:
                    whole.copy_(own)
                else:
                    shard = math.ceil(whole.numel() / self._num_shards)
                    mine = functional.pad(own.to(whole), (0, shard - own.numel()))
                    parts = mine.new_empty(shard * self._num_shards)
                    distributed.all_gather_into_tensor(
                        parts.view(torch.uint8), mine.view(torch.uint8)
                    )
                    whole.copy_(parts[: whole.numel()])


class Partitions:
    """This worker's partitions of float32 master weights and moments, as slices of named
    parameters.

    `flats` stay the same tensor objects for the engine's life.
    """

    def __init__(self, engine: Any, stage: int, moments: Callable[[str], Sequence[str]]) -> None:
        """Lay out an engine's partitions, and make the optimiser's state, `moments` of each
        parameter by its name.

        Parameters of one group of the optimiser have the same moments.
        """
        self._optimizer = optimizer = engine.optimizer
        self.stage = stage
        self.adam = optimizer if stage == 0 else optimizer.optimizer
        self.flats: list[Tensor]
        groups: Sequence[Sequence[Any]]
        if stage == 0:  # the parameters themselves; each worker counts as the owner of all
            self.flats = [
                parameter for group in optimizer.param_groups for parameter in group["params"]
            ]
            groups = [[flat] for flat in self.flats]
        elif stage == 3:
            self.flats = list(optimizer.fp32_partitioned_groups_flat)
            groups = optimizer.fp16_groups
        else:
            self.flats = list(optimizer.single_partition_of_fp32_groups)
            groups = optimizer.bit16_groups
        names = {parameter: name for name, parameter in engine.module.named_parameters()}
        self.members = [[names[parameter] for parameter in group] for group in groups]
        """Names of the parameters that each flat is a part of, alike on all workers."""
        self.slices_of: list[list[ParameterSlice]] = []
        for index, group in enumerate(groups):
            self.slices_of.append(
                [each for each in self._slices(index, group) if each.start < each.stop]
            )
        for flat, members in zip(self.flats, self.members, strict=True):
            # Adam makes its state at the first step; made here, a checkpoint from before it is like
            # any other.
            state = {"step": torch.zeros((), dtype=torch.float32, device=flat.device)}
            for moment in moments(members[0]):
                state[moment] = torch.zeros_like(flat.detach())
            self.adam.state[flat] = state

    def _slices(self, index: int, group: Sequence[Any]) -> Iterator[ParameterSlice]:
        """This worker's slice of each parameter of a group; some are empty."""
        rank = distributed.get_rank()
        offset = 0
        for name, parameter in zip(self.members[index], group, strict=True):
            if self.stage == 0:
                yield ParameterSlice(name, 0, parameter.numel(), 0)
            elif self.stage == 3:
                # Each parameter is cut into equal shards, one a worker, the last padded, stored end
                # to end.
                shard = parameter.partition_numel()
                yield ParameterSlice(
                    name, rank * shard, min((rank + 1) * shard, parameter.ds_numel), offset
                )
                offset += shard
            else:
                # The group is a flat buffer, cut into equal ranges, one a worker, across
                # parameters. A place in it is read from an address, which holds whatever order and
                # padding DeepSpeed chose.
                buffer = self._optimizer.bit16_groups_flat[index]
                size = self.flats[index].numel()
                process_group = self._optimizer.real_dp_process_group[index]
                low = distributed.get_rank(group=process_group) * size
                begin = (parameter.data_ptr() - buffer.data_ptr()) // buffer.element_size()
                start = max(0, low - begin)
                yield ParameterSlice(
                    name, start, min(parameter.numel(), low + size - begin), begin + start - low
                )

    def tensors(self, index: int) -> dict[str, Tensor]:
        """Return one flat's `master` and moments."""
        state = self.adam.state[self.flats[index]]
        return {
            "master": self.flats[index].detach(),
            **{name: state[name] for name in state if name != "step"},
        }

    @property
    def clip_factor(self) -> float:
        """Number that clipping divided the last step's gradient by; 1 for none."""
        scale = getattr(self.adam, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    @property
    def adam_step(self) -> int:
        """Number of updates applied so far; a skipped step does not count."""
        if self.flats:
            return int(self.count_updates(self.flats))
        return 0

    @adam_step.setter
    def adam_step(self, value: int) -> None:
        for flat in self.flats:
            self.adam.state[flat]["step"].fill_(value)

    def count_updates(self, flats: Sequence[Tensor]) -> Tensor:
        """Return the number of updates applied to some flats, 0-dim; at stage 0 frozen ones are
        never updated.
        """
        return torch.stack([self.adam.state[flat]["step"] for flat in flats]).max()

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Allow the master weights to be written; at the end, those that the network computes with
        follow them.
        """
        optimizer = self._optimizer
        if self.stage == 3:
            optimizer.checkpoint_event_prologue()
        with torch.no_grad():
            yield
        if self.stage in (1, 2):
            optimizer.update_lp_params()
        elif self.stage == 3:
            for index in range(len(self.flats)):
                optimizer._reassign_or_swap_out_partitioned_parameters(index)
            optimizer.checkpoint_event_epilogue()
