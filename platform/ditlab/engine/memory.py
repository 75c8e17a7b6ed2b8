"""Memory of a step: activations computed again or offloaded, state in files, pages that are kept for the next step.

Activation checkpointing is that of Chen et al. 2016 (arXiv:1604.06174).
"""

import ctypes
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from ditlab.engine.deepspeed_internals import import_deepspeed
from ditlab.errors import UserError
from ditlab.spec.engine import Zero

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1
_LARGE = 32 * 2**20
"""Bytes from which tensors still come from the system and go back to it: the most that glibc takes here."""
INSTEAD = "or set engine.zero.offload to cpu"


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep what is freed for the process' next tensors inside, and give it back at the end.

    Does nothing under C libraries other than glibc. Of contexts one inside the other, the first end is that of all.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_M_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)  # where glibc's own adjustment ends
        libc.malloc_trim(0)


def checkpoint_activations(modules: Iterable[nn.Module], recomputed: bool, offloaded: bool) -> None:
    """Recompute activations of modules in the backward pass (`recomputed`), and keep tensors on the host (`offloaded`).

    With both, the inputs of the recomputed modules are kept on the host. A module is changed once only.
    """
    for module in modules:
        if not isinstance(module.forward, _CheckpointedForward):
            module.forward = _CheckpointedForward(module.forward, recomputed, offloaded)


class _CheckpointedForward:
    """Forward pass of a module that recomputes or offloads its activations."""

    def __init__(self, forward: Any, recomputed: bool, offloaded: bool) -> None:
        self._forward, self._recomputed, self._offloaded = forward, recomputed, offloaded

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        pinned = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
        with save_on_cpu(pinned) if self._offloaded else nullcontext():
            if self._recomputed:
                return checkpoint(self._forward, *inputs, use_reentrant=False, **named)
            return self._forward(*inputs, **named)


def check_swapping() -> None:
    """Raise UserError where DeepSpeed's extension cannot be built, naming the missing package.

    The build takes some minutes, once: it is kept in TORCH_EXTENSIONS_DIR.
    """
    import_deepspeed()  # its accelerator decides which builder it is
    from deepspeed.ops.op_builder import AsyncIOBuilder

    for program, package in (("c++", "g++"), ("ninja", "ninja-build")):
        if shutil.which(program) is None:
            raise UserError(
                f"engine.zero.offload=nvme compiles an extension, and there is no `{program}` on this machine; "
                f"install the Debian package {package}, {INSTEAD}."
            )
    if not AsyncIOBuilder().is_compatible(verbose=False):
        raise UserError(
            "engine.zero.offload=nvme needs the headers of libaio, which this machine lacks; "
            f"install the Debian package libaio-dev, {INSTEAD}."
        )


def swap_folder(zero: Zero, own: Path | None) -> Path:
    """Create this engine's folder below `engine.zero.nvme_path` or the run's `own`; two runs may share a disk.

    Deletes folders of dead processes of this machine. Raises UserError where the folder cannot be created.
    """
    base = Path(zero.nvme_path) if zero.nvme_path else own
    if base is None:
        raise UserError("engine.zero.nvme_path is null and this run has no folder of its own; give it a folder.")
    host = socket.gethostname()
    try:
        base.mkdir(parents=True, exist_ok=True)
        for left in base.glob(f"swap-{host}-*-*"):
            if not _alive(left.name.removeprefix(f"swap-{host}-").partition("-")[0]):
                shutil.rmtree(left, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"swap-{host}-{os.getpid()}-", dir=base)).absolute()
    except OSError as error:
        raise UserError(
            f"engine.zero.nvme_path={base} cannot be written to ({error.strerror}); name a folder on a local disk."
        ) from None


def _alive(process: str) -> bool:
    """Return True unless the process, given by its number, is dead."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
        return True  # another user's process, or no number
    return True
