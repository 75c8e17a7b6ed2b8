"""Checks of this machine: libraries, devices, compiler, disk, model families. A finding is a line
for each check.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ditlab.errors import RunFailed, UserError, first_line
from ditlab.home import Home
from ditlab.spec.compiling import cpp_compiler, missing_to_compile
from ditlab.spec.values import format_bytes

# Oldest versions that the platform was run with; the same floors as the package's own metadata.
MIN_VERSIONS = {
    "torch": (2, 8),
    "ray": (2, 60),
    "deepspeed": (0, 19, 8),
    "mlflow": (3, 17),
    "pyarrow": (17,),
    "pydantic": (2, 10),
}
# bytes free below which a note is due: checkpoints of a small model and its artifacts
MIN_FREE_BYTES = 5 * 2**30

_WORKER_TIMEOUT = 120.0  # seconds for a process to start and import torch, on a busy machine


@dataclass(frozen=True)
class Finding:
    """Result of one check: a line of `ditlab doctor`."""

    verdict: Literal["ok", "note", "missing"]
    what: str
    found: str
    remedy: str = ""


def last_sentence(findings: Sequence[Finding]) -> str:
    """Sentence that sums up the findings on a cluster."""
    missing = list(dict.fromkeys(each.what for each in findings if each.verdict == "missing"))
    notes = list(dict.fromkeys(each.what for each in findings if each.verdict == "note"))
    if missing:
        return f"not ready for a long run: fix {', '.join(missing)}."
    if notes:
        return f"ready for a long run (worth a look: {', '.join(notes)})."
    return "ready for a long run."


def check_machine() -> list[Finding]:
    """Findings of every check, in order; none raises. What `ditlab train` starts is started, as
    that starts it.
    """
    return [*_libraries(), *_devices(), *_rest(), *check_tracking(), *check_ray()]


def _libraries() -> Iterator[Finding]:
    yield Finding("ok", "Python", platform.python_version())
    for name, floor in MIN_VERSIONS.items():
        remedy = f"pip install '{name}>={'.'.join(map(str, floor))}'"
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("missing", name, "not installed", remedy)
            continue
        numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:3] if part.isdigit())
        if numbers >= floor:
            yield Finding("ok", name, found)
        else:
            yield Finding("missing", name, found, remedy)


def _devices() -> Iterator[Finding]:
    import psutil
    import torch

    memory = format_bytes(psutil.virtual_memory().total)
    yield Finding("ok", "CPU", f"{os.cpu_count()} cores, {memory} memory")
    count = torch.cuda.device_count()
    if not count:
        remedy = (
            "none needed for small models; with a GPU here, install torch's CUDA build and its "
            "driver"
        )
        yield Finding("note", "GPU", "none that torch can use", remedy)
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        yield Finding(
            "ok", f"GPU {index}", f"{properties.name}, {format_bytes(properties.total_memory)}"
        )


def _rest() -> Iterator[Finding]:
    from ditlab_models.families import families

    missing = missing_to_compile()
    compiler = cpp_compiler() or "none"
    if missing:
        remedy = f"only engine.compile=true or auto needs {missing.what}: {missing.remedy}"
        yield Finding("note", "C++ compiler", compiler, remedy)
    else:
        yield Finding("ok", "C++ compiler", compiler)
    home = Home.from_environment()
    existing = existing_folder(home.root)
    free = shutil.disk_usage(existing).free
    room = f"{home.root}, {format_bytes(free)} free"
    if not os.access(existing, os.W_OK):
        remedy = "point DITLAB_HOME at a writable folder"
        yield Finding("missing", "DITLAB_HOME", f"{home.root} cannot be written", remedy)
    elif free >= MIN_FREE_BYTES:
        yield Finding("ok", "DITLAB_HOME", room)
    else:
        yield Finding("note", "DITLAB_HOME", room, "free some space, or point it elsewhere")
    try:
        yield Finding("ok", "model families", ", ".join(families()))
    except (ImportError, AttributeError, AssertionError, UserError) as error:
        yield Finding("missing", "model families", str(error), "fix or remove that family's folder")


def existing_folder(path: Path) -> Path:
    """Folder that is there, of a path and those above it: what is written to the path lies on its
    disk.
    """
    return next(folder for folder in (path, *path.parents) if folder.exists())


def check_tracking() -> Iterator[Finding]:
    """Findings on MLflow where runs launched here are tracked: its library, and the database or
    server.
    """
    from ditlab.tracking.access import (
        access_fault,
        launch_address,
        redact,
        resolve_tracking_uri,
        sqlite_path,
    )
    from ditlab.tracking.mlflow_connection import load_mlflow

    try:
        home = Home.from_environment()
        uri = resolve_tracking_uri(launch_address(None, home), home)
        load_mlflow()
    except Exception as error:  # as much as an import may raise
        yield Finding(
            "missing",
            "MLflow",
            first_line(error),
            "correct that; runs go on, and MLflow shows nothing of them",
        )
        return
    is_new = uri.startswith("sqlite:") and not sqlite_path(uri).exists()
    fault = ""
    if not is_new:
        fault = access_fault(uri, "start that server") or store_fault(uri, home)
    if not fault:
        yield Finding("ok", "MLflow", redact(uri))
        return
    found, _, remedy = fault.rstrip(".").partition("; ")
    yield Finding("missing", "MLflow", found, remedy)


def store_fault(uri: str, home: Home) -> str:
    """Return a clause on what MLflow's client meets at an address that answers; empty where it may
    read there.
    """
    from ditlab.tracking.access import redact, refusal_message
    from ditlab.tracking.mlflow_connection import connect, denial, outage_reason

    try:
        connect(uri, home).search_experiments(max_results=1)
    except Exception as error:
        # MLflow's client and its database drivers raise errors of a dozen kinds.
        return (
            refusal_message(uri, *denial(error))
            or f"{redact(uri)} cannot be read ({outage_reason(error)})"
        )
    return ""


def check_ray() -> Iterator[Finding]:
    """Finding on the Ray instance or cluster that a training here would use, and on a worker's
    imports there.
    """
    from ditlab.cluster.session import cluster_address, ray_session

    said = list[str]()
    began = time.monotonic()
    address = cluster_address(None)
    try:
        with ray_session(address, 1, said.append):
            from ditlab.cluster.nodes import alive_nodes, run_on_nodes

            results = run_on_nodes(alive_nodes(), import_worker, timeout=_WORKER_TIMEOUT)
    except (UserError, RunFailed) as error:
        cause: BaseException = error
        if isinstance(error, RunFailed) and error.__cause__:
            cause = error.__cause__
        remedy = "correct that; `ditlab train --local` trains without Ray"
        yield Finding("missing", "Ray workers", first_line(cause), remedy)
        return
    for result in results:
        if result.problem:
            remedy = (
                "a worker has to import DiTLab as this process does: look at PYTHONPATH and "
                "the installation"
            )
            yield Finding("missing", f"Ray workers on {result.name}", result.problem, remedy)
    if not any(result.problem for result in results):
        where = "of an instance on this machine"
        if address:
            where = f"of RAY_ADDRESS={address}"
        text = f"started and ready in {time.monotonic() - began:.0f} s, {where}"
        yield Finding("note" if said else "ok", "Ray workers", text, " ".join(said))


def import_worker() -> None:
    """Import what a worker imports."""
    import ditlab.cluster.worker_body  # noqa: F401
