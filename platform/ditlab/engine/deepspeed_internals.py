"""Names of DeepSpeed that are no part of its interface: the one file that uses them.

The import leaves out MLflow and a compiled Muon, which DeepSpeed loads and this engine never uses (4 s of 9).
"""

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import Lock
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from ditlab.engine.phase_clock import PhaseClock


def import_deepspeed() -> Any:
    """Import DeepSpeed without MLflow, which its autotuner takes if it is there, and without torch's compiler."""
    if "deepspeed.runtime.zero.muon.muon_optimizer" in sys.modules:
        return sys.modules["deepspeed"]
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _hidden("mlflow"):
            deepspeed = importlib.import_module("deepspeed")
        _import_muon()
    return deepspeed


def _import_muon() -> None:
    """Import DeepSpeed's Muon, whose class its ZeRO asks for, with kernels left uncompiled: nobody calls them."""
    compiler: Any = importlib.import_module("deepspeed.runtime.compiler")
    compile_of, compiler.compile = compiler.compile, lambda: compiler.dummy_decorator
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        compiler.compile = compile_of


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


_lock = Lock()
_originals: list[Any] = []
"""Torch's own function, once for each open engine."""


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


def spare_copies(engine: Any, stage: int, num_workers: int) -> None:
    """Leave one worker's gradients where they are; make those of several views of the buffer that was summed.

    DeepSpeed copies gradients into a flat buffer and back, of one worker too, whose gradients are their own mean.
    Stage 2 keeps its own partition's alone, so these are copied and the buffer goes. Buckets that are contiguous from
    the start (on GPUs, and where state is offloaded) are not touched.
    """
    optimizer = engine.optimizer
    if num_workers == 1:
        if stage == 0:
            engine.enable_backward_allreduce = False
        elif stage < 3:
            optimizer.buffered_reduce_fallback = _leave
    elif stage == 0:
        collect = engine._get_gradients_for_reduction

        def collected() -> tuple[list[Tensor], dict[str, list[Tensor]]]:
            collect()  # sets gradients that are missing on this worker to zero
            return [each.grad for each in engine.module.parameters() if each.grad is not None and each.numel()], {}

        def averaged(gradients: Sequence[Tensor], *where: Any) -> None:
            _point(gradients, engine.unflatten(engine.allreduce_bucket(gradients, *where), gradients))

        engine._get_gradients_for_reduction, engine.allreduce_and_copy = collected, averaged
    elif stage < 3:

        def averaged_bucket(gradients: Sequence[Tensor], dtype: Any, rank: int | None = None, **_: Any) -> None:
            assert rank is None, "gradients of stages 1 and 2 are summed for all workers"
            means = optimizer.unflatten(optimizer.allreduce_bucket(gradients, dtype), gradients)
            if stage == 1:
                _point(gradients, means)
                return
            for gradient, mean, (_, _, number) in zip(
                gradients, means, optimizer.ipg_buckets[dtype].params, strict=True
            ):
                if optimizer.is_param_in_current_partition[number]:
                    gradient.copy_(mean)

        optimizer.allreduce_and_copy = averaged_bucket


def _leave(*_: Any, **__: Any) -> None:
    """Reduce nothing."""


def _point(gradients: Sequence[Tensor], means: Sequence[Tensor]) -> None:
    """Make gradients views of their means; copy only into another layout, such as channels-last."""
    for gradient, mean in zip(gradients, means, strict=True):
        if gradient.is_contiguous():
            gradient.data = mean
        else:
            gradient.data.copy_(mean)
