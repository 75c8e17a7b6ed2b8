"""Reports of one node about itself, and about what it sees of an import's folders.

Both are sent to the node by value, so that one without DiTLab can answer, too.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import platform
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("ditlab", "ditlab_models")  # imported by name: a node may lack them
LIBRARIES = ("ray", "torch", "deepspeed", "mlflow", "pyarrow", "pydantic")
# seconds for a new file to be visible: network file systems cache that it did not exist
FILE_TIMEOUT = 2.0


def versions(with_code: bool = True, packages: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python, of libraries and of DiTLab, as this process would import them; "" for one
    not installed.

    `packages` are those of an experiment's parts (`spec.plugins.plugin_packages`).
    """
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    if not with_code:
        return found
    from ditlab.spec.plugins import installed_version

    return {
        **found,
        "ditlab": code_version(),
        **{name: installed_version(name) for name in packages},
    }


def code_version() -> str:
    """DiTLab's version with a digest over its source, `0.1.0-3f9a01bc22d4`; "" where it is not
    installed.

    The same for a wheel and a checkout of the same code.
    """
    digest = hashlib.sha256()
    packages = list(PACKAGES)
    if find_spec("ditlab_addons"):
        packages.append("ditlab_addons")
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.origin:
            return ""
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{path.relative_to(folder).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{importlib.import_module('ditlab').__version__}-{digest.hexdigest()[:12]}"


def node_report(
    home: str, storage: str | None, probe: str, packages: Iterable[str] = ()
) -> dict[str, Any]:
    """Values of `survey.NodeReport` for this node, and its clock.

    `probe` is the name, and the content, of the files that the launcher has written to `home`
    (DITLAB_HOME) and `storage` (`checkpoint.storage`, a folder's absolute path or a URI);
    `packages` are those of the experiment's parts.
    """
    problem = ""
    try:
        if not all(importlib.import_module(name).__file__ for name in PACKAGES):
            problem = "a folder of its name hides it"
    except Exception as error:  # whatever a broken installation raises is what there is to report
        problem = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    found: dict[str, Any] = {
        "problem": problem,
        "versions": versions(with_code=not problem, packages=packages),
        "home": _probe_problem(lambda: (Path(home) / probe).read_bytes(), probe),
        "storage": "",
    }
    if storage is not None and not problem:  # read by the code that reads checkpoints
        from ditlab.checkpoints.store import CheckpointStore

        found["storage"] = _probe_problem(
            lambda: CheckpointStore.at(storage).files.read("", probe), probe
        )
    return {**found, "clock": time.time()}  # last, so that it is fresh when it arrives


def _probe_problem(read: Callable[[], bytes], probe: str) -> str:
    """Reason why a probe cannot be read; empty where it can."""
    deadline = time.monotonic() + FILE_TIMEOUT
    while True:
        try:
            if read() == probe.encode():
                return ""
            return "something else lies there"
        except FileNotFoundError:
            if time.monotonic() > deadline:
                return "it is not there"
            time.sleep(0.2)
        except Exception as error:  # each library of a store has exceptions of its own
            return f"{type(error).__name__}: {error}".splitlines()[0][:300].rstrip(".")


def probe_node(probe: str, content: str, source: str | None) -> list[str]:
    """Return what a node lacks: `ditlab`, `out` (the probe's file is not there), `source` (a path;
    None: a URI).
    """
    lacks = []
    if not find_spec("ditlab"):
        lacks.append("ditlab")
    try:
        is_there = Path(probe).read_text() == content
    except OSError:
        is_there = False
    if not is_there:
        lacks.append("out")
    if source is not None and not Path(source).exists():
        lacks.append("source")
    return lacks
