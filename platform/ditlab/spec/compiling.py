"""Decision whether a run's blocks are compiled, by spec, device type and torch's version alone.
Imports no torch.
"""

import os
import shutil
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from ditlab.errors import UserError
from ditlab.spec.experiment import Experiment

MEASURED_FROM = (2, 13)
"""Oldest torch, by major and minor number, whose compiled steps were measured against eager
ones.
"""


@dataclass(frozen=True)
class CompileDecision:
    """Outcome of `engine.compile` for a run, and its reason."""

    is_compiled: bool
    reason: str
    """Part of a sentence."""
    numbers: str
    """Origin of the blocks' numbers, up to the machine: `eager`, or `compiled by torch 2.13.0 for
    cpu`.
    """

    def __str__(self) -> str:
        return f"{self.numbers} ({self.reason})"


def compile_decision(experiment: Experiment, device_type: str) -> CompileDecision:
    """Decide whether the blocks are compiled under the installed torch, on a device of type `cpu`
    or `cuda`.

    The same spec gives the same bits on every machine of a kind, or an error: UserError for ZeRO-3
    under a torch whose compiled blocks lose gradients there.
    """
    torch_version = installed_torch().split("+")[0]
    asked = experiment.engine.compile
    is_compiled = bool(asked)
    reason = f"engine.compile={str(asked).lower()}"
    is_old = tuple(int(part) for part in torch_version.split(".")[:2]) < MEASURED_FROM
    if asked is True and is_old and experiment.engine.zero.stage == 3:
        # Seen with 2.11, on an H200 and on a CPU, whatever the backend: gradients were 0, of dit
        # nearly all.
        raise UserError(
            "engine.compile=true with engine.zero.stage=3 loses gradients under torch "
            f"{torch_version}; install torch {MEASURED_FROM[0]}.{MEASURED_FROM[1]} or later, "
            "or set engine.compile to false."
        )
    if asked == "auto" and is_old:
        is_compiled = False
        reason += f": torch {torch_version} is older than {MEASURED_FROM[0]}.{MEASURED_FROM[1]}"
    numbers = "eager"
    if is_compiled:
        numbers = f"compiled by torch {torch_version} for {device_type}"
    return CompileDecision(is_compiled, reason, numbers)


@cache
def installed_torch() -> str:
    """Return torch's version, for which its whole metadata are read: 5 ms."""
    return version("torch")


def cpp_compiler() -> str | None:
    """Return the path of the compiler that builds torch's generated kernels, on a GPU too; None:
    there is none.
    """
    if os.environ.get("CXX"):
        candidates = [os.environ["CXX"]]
    else:
        candidates = ["g++", "c++", "clang++"]
    return next(filter(None, map(shutil.which, candidates)), None)


class MissingPart(NamedTuple):
    """Part that compiling needs and this machine lacks."""

    what: str
    """End of `engine.compile needs ...`."""
    remedy: str


def missing_to_compile() -> MissingPart | None:
    """Return what this machine lacks to compile blocks, on a GPU too; None where it has all."""
    if cpp_compiler() is None:
        compiler = os.environ.get("CXX") or "g++"
        return MissingPart(
            f"a C++ compiler, and this machine has no `{compiler}`",
            "install g++ (or point CXX at a compiler)",
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():  # Debian's g++ comes without it
        return MissingPart(f"Python's headers, and {header} is missing", "install python3-dev")
    return None


def compiled_warning(written: str, present: str) -> str:
    """Warning for a run that goes on from a checkpoint whose `numbers` were others; empty where
    they are the same.
    """
    if written == present:
        return ""
    return (
        f"the checkpoint was written by a run whose blocks were {written}, and here they are "
        f"{present}: from here on numbers differ by rounding from those that it would have "
        "computed; set engine.compile as it was for the same."
    )
