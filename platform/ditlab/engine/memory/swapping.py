"""Offload of state to files: DeepSpeed's asynchronous I/O extension, compiled at the first use, and its folder."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

from ditlab.engine.deepspeed_import import import_deepspeed
from ditlab.errors import UserError
from ditlab.spec.engine import Zero

INSTEAD = "or set engine.zero.offload to cpu"


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
