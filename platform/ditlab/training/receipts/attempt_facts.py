"""Facts of an attempt: machine, versions, code, data."""

import hashlib
import importlib.metadata
import importlib.util
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

from ditlab.engine.distributed import Rank
from ditlab.numerics import NUMERICS_VERSION
from ditlab.receipts.attempt import RecordedAttempt
from ditlab.receipts.writer import describe_attempt
from ditlab.spec.compiling import compile_decision
from ditlab.spec.plugin_packages import plugin_packages
from ditlab.storage.plain_files import MIB, read_plain
from ditlab.training.memory import MemoryPlan
from ditlab.training.plan import TrainingRun

LIBRARIES = ("torch", "deepspeed", "numpy")
"""Libraries that a step's numbers come from."""
OWN_PACKAGES = ("ditlab", "denoisers")


def attempt_facts(run: TrainingRun, rank: Rank, memory: MemoryPlan, step: int) -> RecordedAttempt:
    """Return what an attempt trains with, from `step` steps on."""
    experiment, device = run.experiment, rank.device
    spec = experiment.to_dict()
    return describe_attempt(
        step=step,
        workers=rank.world_size,
        halvings=memory.halvings,
        left_out=[number + 1 for number in memory.skipped_steps],
        device=device_name(device),
        processor=processor_name(),
        threads=torch.get_num_threads(),
        versions=library_versions(),
        code=code_digest(tuple(plugin_packages(spec))),
        data=run.data.fingerprint,
        spec_hash=experiment.content_hash(),
        numerics=NUMERICS_VERSION,
        blocks=compile_decision(experiment, device.type).numbers,
    )


def device_name(device: torch.device) -> str:
    """Return `cpu`, or a GPU's name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def processor_name() -> str:
    """Return the model of this machine's CPU."""
    try:
        text = Path("/proc/cpuinfo").read_bytes()[: 64 * 1024].decode("utf-8", "replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def library_versions() -> dict[str, str]:
    """Return the versions of Python, DiTLab and the libraries that a step's numbers come from."""
    found = {"python": platform.python_version(), "ditlab": _version("ditlab")}
    return found | {name: _version(name) for name in LIBRARIES}


@cache
def code_digest(packages: tuple[str, ...] = ()) -> str:
    """Return a SHA-256 over the Python sources of ditlab and denoisers, and of other packages by their names.

    Comments count, as a digest of the text cannot tell them from code.
    """
    digest = hashlib.sha256()
    for name in (*OWN_PACKAGES, *packages):
        for label, path in _sources(name):
            digest.update(f"{name}/{label}\n".encode())
            digest.update(hashlib.sha256(read_plain(path, 16 * MIB, follow=True)).digest())
    return digest.hexdigest()


def _sources(name: str) -> Iterable[tuple[str, Path]]:
    """Yield the Python files of an import package or of an installed distribution, by path within it, sorted."""
    if name in OWN_PACKAGES or name.startswith("denoisers/"):
        spec = importlib.util.find_spec(name.replace("/", "."))
        folders = list(spec.submodule_search_locations or []) if spec else []
        found = [
            (path.relative_to(folder).as_posix(), path) for folder in folders for path in Path(folder).rglob("*.py")
        ]
    else:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            files = []
        found = [(str(file), Path(str(file.locate()))) for file in files if str(file).endswith(".py")]
    yield from sorted((label, path) for label, path in found if path.is_file())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
