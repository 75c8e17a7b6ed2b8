"""Survey of every node before anything of a run exists: versions, shared folders, clock; one sentence for each fault.

A node that joins after the launch is checked by its own worker.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.node_report import FILE_TIMEOUT, node_report, versions
from ditlab.cluster.nodes import NodeRow, alive_nodes, node_name, run_on_nodes
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path
from ditlab.runs.prepare import missing_interface
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.spec.uris import is_uri
from ditlab.storage.local import writable_folder

TOLERATED = ("mlflow", "pyarrow", "pydantic")
"""Packages that may differ between nodes, with a warning. All others must have the same version on all nodes."""
MAX_SKEW = 5.0  # seconds between two clocks: journals, locks and time stamps of checkpoints are of several nodes
REPORT_TIMEOUT = 60.0  # seconds for all reports: a node starts a process for its own, in one to ten


def check_nodes(experiment: Experiment, warn: Callable[[str], None], everywhere: bool = False) -> None:
    """Raises UserError where a node cannot take part in the run; leaves nothing behind.

    `warn` receives warnings about nodes that may train all the same; `everywhere`: work may run on nodes without CPU or
    GPU as well.
    """
    home = Home.from_environment()
    storage = experiment.checkpoint.storage
    packages = tuple(plugin_packages(experiment.to_dict()))
    required = NodeRequirements(
        versions(packages=packages), str(home.root), absolute(storage) if storage else None,
        experiment.resources.network.interface,
    )  # fmt: skip
    reports, silent = collect_reports(home, required.storage, packages=packages)
    if faults := node_faults(reports, required, everywhere):
        raise UserError(faults[0])
    for sentence in (*silent, *node_warnings(reports, required.versions, everywhere)):
        warn(f"warning: {sentence}")


def collect_reports(
    home: Home, storage: str | None, timeout: float = REPORT_TIMEOUT, packages: Sequence[str] = ()
) -> tuple[list[NodeReport], list[str]]:
    """Reports of all nodes, and a sentence for each node that sent none.

    `storage` is a folder's absolute path or a URI, `packages` are those of the experiment's parts. Raises UserError
    where this machine cannot write there.
    """
    with probe_files(home, storage) as probe:
        arguments = (str(home.root), storage, probe, packages)
        results = run_on_nodes(alive_nodes(), node_report, *arguments, timeout=timeout, by_value=True)
    reports = []
    silent = []
    for result in results:
        if result.problem:
            what = "what it lacks will show when a worker starts there"
            silent.append(f"node {result.name} sent no report ({result.problem}); {what}.")
            continue
        values = dict(result.value)
        skew = values.pop("clock") - result.received
        reports.append(NodeReport(result.name, can_train(result.node), skew=skew, **values))
    return sorted(reports, key=lambda report: report.name), silent


def can_train(node: NodeRow) -> bool:
    """Return True if a node has a CPU or a GPU."""
    return any(node["Resources"].get(kind, 0) > 0 for kind in ("CPU", "GPU"))


def absolute(storage: str) -> str:
    """Storage as every node finds it: a folder by its absolute path, a URI unchanged."""
    return storage if is_uri(storage) else str(resolve_user_path(storage))


@contextmanager
def probe_files(home: Home, storage: str | None) -> Iterator[str]:
    """Write probe files into DITLAB_HOME and the storage for the length of the block; yields their name and content.

    Folders made for them are removed as well. Raises UserError where nothing can be written.
    """
    with ExitStack() as stack:
        what = f"DITLAB_HOME={home.root}"
        name = stack.enter_context(probe_file(home.root, what, "point DITLAB_HOME at a writable folder"))
        if storage is None:
            yield name
            return
        if not is_uri(storage):
            stack.enter_context(removed_if_empty(Path(storage)))
        store = CheckpointStore.at(storage)
        store.files.check_writable()
        with store.files.translating_errors("cannot be written", "name a place that every node can write into"):
            store.files.write("", name, [name.encode()])
        try:
            yield name
        finally:
            with store.files.translating_errors("takes nothing back", "check that files can be deleted there, too"):
                store.files.delete("", name)


@contextmanager
def probe_file(folder: Path, what: str, remedy: str) -> Iterator[str]:
    """Write a probe file into a folder for the length of the block; yields its name, which is its content.

    Raises UserError, with `what` and `remedy`, where the folder cannot be written.
    """
    name = f".probe-{secrets.token_hex(8)}"
    with removed_if_empty(folder):
        writable_folder(folder, what, remedy)
        try:
            (folder / name).write_text(name)
        except OSError as error:
            raise UserError(f"{what} cannot be written ({error.strerror}); {remedy}.") from error
        try:
            yield name
        finally:
            (folder / name).unlink(missing_ok=True)


@contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """Allow the block to make a folder; folders that are new and empty at the end are removed."""
    new: Sequence[Path] = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    finally:
        with suppress(OSError):
            for each in new:
                each.rmdir()


def check_joining_node(expected: Mapping[str, str], packages: Collection[str], home: Home, run_id: str) -> None:
    """Raises UserError, as the survey does, where this node has other versions than the launcher (`expected`, of
    `packages` of the experiment's parts too), or does not see the run's folder.
    """
    folder = home.run(run_id).path
    deadline = time.monotonic() + FILE_TIMEOUT
    while not (is_there := folder.is_dir()) and time.monotonic() < deadline:
        time.sleep(0.2)
    problem = "" if is_there else f"the run's folder train/{run_id} is not there"
    report = NodeReport(node_name(), True, versions(packages=packages), home=problem)
    if faults := node_faults([report], NodeRequirements(expected, str(home.root))):
        raise UserError(faults[0])


@dataclass(frozen=True)
class NodeReport:
    """Report of one node about itself and the launcher's files."""

    name: str
    """Name in messages: host name, address, the beginning of Ray's id."""
    trains: bool
    """True if it has a CPU or a GPU; a head may only drive."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of libraries, as `report.versions` returns them."""
    problem: str = ""
    """Reason why DiTLab cannot be imported there."""
    home: str = ""
    """Reason why the probe below DITLAB_HOME cannot be read there."""
    storage: str = ""
    """Reason why the probe below `checkpoint.storage` cannot be read there."""
    interfaces: Sequence[str] = ()
    """Names of its network interfaces."""
    skew: float = 0.0
    """Seconds by which its clock is ahead of the launcher's."""
    home_free: int = 0
    """Free bytes of the disk that DITLAB_HOME lies on."""
    cache_free: int = 0
    """Free bytes of the disk that DITLAB_CACHE lies on."""


@dataclass(frozen=True)
class NodeRequirements:
    """Requirements on every node: versions, shared folders, network interface."""

    versions: Mapping[str, str]
    home: str
    storage: str | None = None
    interface: str | None = None


def node_faults(reports: Sequence[NodeReport], required: NodeRequirements, everywhere: bool = False) -> list[str]:
    """Return what would make a run fail, a sentence each; a fault stands before those that follow from it.

    A node that only drives needs the same Ray and Python alone, unless work may run `everywhere` (a sweep's trials are
    led from any node).
    """
    working = [each for each in reports if each.trains or everywhere]
    whole = [each for each in working if not each.problem]
    faults = [*software_faults(reports, working, required.versions), *unshared_faults(whole, required)]
    interface = required.interface
    lacking = [([*each.interfaces], each.name) for each in whole if interface not in (None, *each.interfaces)]
    return faults + [missing_interface(str(interface), nodes, existing) for existing, nodes in _by_value(lacking)]


def node_warnings(reports: Sequence[NodeReport], own: Mapping[str, str], everywhere: bool = False) -> list[str]:
    """Return a sentence for each tolerated difference of versions, and for each clock that differs."""
    whole = [each for each in reports if (each.trains or everywhere) and not each.problem]
    return _differences(whole, own, TOLERATED) + [
        f"the clock of node {each.name} is {abs(each.skew):.0f} s {'ahead of' if each.skew > 0 else 'behind'} that of "
        "the launcher; let NTP set both, or the run's time stamps contradict each other."
        for each in reports
        if abs(each.skew) > MAX_SKEW
    ]


def software_faults(reports: Sequence[NodeReport], working: Sequence[NodeReport], own: Mapping[str, str]) -> list[str]:
    """Faults of nodes that cannot import DiTLab, or have other versions of packages that must be the same.

    Only the `working` ones of all reports need more than the same Python and Ray.
    """
    broken = _by_value((each.problem, each.name) for each in working if each.problem)
    faults = [
        f"DiTLab cannot be imported on {nodes} ({reason}); send it along with `ditlab submit`, or with `ray job submit "
        "--working-dir . --runtime-env platform/runtime_env.yaml`, or install it on every node."
        for reason, nodes in broken
    ]
    others = [name for name in own if name not in ("python", "ray", *TOLERATED)]
    whole = [each for each in working if not each.problem]
    return faults + _differences(reports, own, ["python", "ray"]) + _differences(whole, own, others)


def unshared_faults(reports: Sequence[NodeReport], required: NodeRequirements) -> list[str]:
    """Faults of nodes that do not see the launcher's files."""
    state = "is not shared"
    remedy = "name a folder that all nodes have mounted in the same place, or an object store's URI"
    if is_uri(required.storage or ""):
        state = "cannot be reached from every node"
        remedy = "give that node the credentials, in the environment of its `ray start`, and a way to the store"
    mounted = "point DITLAB_HOME at a folder on a file system that all nodes have mounted in the same place"
    return [
        f"{what}: what is written there cannot be read on {nodes} ({reason}); {how}."
        for key, what, how in (
            ("home", f"DITLAB_HOME={required.home} is not shared", mounted),
            ("storage", f"checkpoint.storage={required.storage} {state}", remedy),
        )
        for reason, nodes in _by_value((getattr(each, key), each.name) for each in reports if getattr(each, key))
    ]


def _differences(reports: Sequence[NodeReport], own: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Sentences on packages in another version than the launcher's.

    Of Python the first two numbers count, of a library all but the build (`+cu128`), which a head may lack.
    """

    def comparable(name: str, version: str) -> str:
        return ".".join(version.split(".")[:2]) if name == "python" else version.partition("+")[0]

    found = []
    for name in names:
        required = own.get(name, "")
        label = "Python" if name == "python" else name
        others = [(each.versions[name], each.name) for each in reports if name in each.versions]
        for version, nodes in _by_value(
            each for each in others if comparable(name, each[0]) != comparable(name, required)
        ):
            if name == "ditlab":
                found.append(
                    f"another version of DiTLab's code is on {nodes} ({version or 'none'}, and {required} where the "
                    "run is launched); send the code along with `ditlab submit`, or install the same on every node."
                )
            elif "/" in name:
                found.append(
                    f"the folder {name} is not on the Python path of {nodes}; put it there, or send it along with the "
                    "job, or install the package that holds it on every node."
                )
            else:
                what = f"{label} {version} is" if version else f"{label} is not"
                same = "the same Python" if name == "python" else f"{name}=={required}"
                found.append(
                    f"{what} installed on {nodes}, and {label} {required} where the run is launched; install {same} on "
                    "every node."
                )
    return found


def _by_value(pairs: Iterable[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """Group pairs (value, node) as (value, its nodes): `node a`; `nodes a, b and c`; of many, the first ones."""
    found = []
    for value, group in groupby(sorted(pairs), key=lambda pair: pair[0]):
        names = [node for _, node in group]
        if len(names) > 4:
            names = [*names[:3], f"{len(names) - 3} more"]
        several = f"nodes {', '.join(names[:-1])} and {names[-1]}"
        found.append((value, several if len(names) > 1 else f"node {names[0]}"))
    return found
