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

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.node_report import FILE_TIMEOUT, node_report, versions
from ditlab.cluster.nodes import NodeRow, TaskResult, alive_nodes, node_name, run_on_nodes
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path, writable_folder
from ditlab.runs.prepare import missing_interface
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.spec.uris import is_uri

TOLERATED = ("mlflow", "pyarrow", "pydantic")
"""Packages that may differ between nodes, with a warning. All others must have the same version on all nodes."""
MAX_SKEW = 5.0  # seconds between two clocks: journals, locks and time stamps of checkpoints are of several nodes
REPORT_TIMEOUT = 60.0  # seconds for all reports: a node starts a process for its own, in one to ten


def check_nodes(experiment: Experiment, warn: Callable[[str], None], everywhere: bool = False) -> None:
    """Raises UserError where a node cannot take part in the run; leaves nothing behind.

    Args:
        experiment: the run's spec.
        warn: receives warnings about nodes that may train all the same.
        everywhere: True if work may run on nodes without CPU or GPU as well.
    """
    home, storage = Home.from_environment(), experiment.checkpoint.storage
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
    reports = [_report(result) for result in results if not result.problem]
    silent = [
        f"node {result.name} sent no report ({result.problem}); what it lacks will show when a worker starts there."
        for result in results
        if result.problem
    ]
    return sorted(reports, key=lambda report: report.name), silent


def _report(result: TaskResult) -> NodeReport:
    """A node's report, with its clock compared to this machine's."""
    values = dict(result.value)
    skew = values.pop("clock") - result.received
    return NodeReport(
        name=result.name, trains=can_train(result.node), skew=skew, round_trip=result.received - result.sent, **values
    )


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
    name = f".probe-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        stack.enter_context(removed_if_empty(home.root))
        writable_folder(home.root, f"DITLAB_HOME={home.root}", "point DITLAB_HOME at a writable folder")
        (home.root / name).write_text(name)
        stack.callback((home.root / name).unlink, missing_ok=True)
        if storage is not None:
            if not is_uri(storage):
                stack.enter_context(removed_if_empty(Path(storage)))
            store = CheckpointStore.at(storage)
            store.check_writable()
            with store.files.translating_errors("cannot be written", "name a place that every node can write into"):
                store.files.write("", name, [name.encode()])
            stack.callback(_delete, store, name)
        yield name


def _delete(store: CheckpointStore, name: str) -> None:
    with store.files.translating_errors("takes nothing back", "check that files can be deleted there, too"):
        store.files.delete("", name)


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
    """Raises UserError where this node has other versions than the launcher, or does not see the run's folder.

    The message is the survey's.

    Args:
        expected: the launcher's versions by library.
        packages: packages that the experiment's parts come from.
        home: home of the run.
        run_id: the run.
    """
    report = NodeReport(node_name(), True, versions(packages=packages), home=_folder_problem(home, run_id))
    required = NodeRequirements(expected, str(home.root))
    faults = [*version_faults([report], [report], required.versions), *unshared_faults([report], required)]
    if faults:
        raise UserError(faults[0])


def _folder_problem(home: Home, run_id: str) -> str:
    """Reason why the run's folder cannot be used here; empty where it is visible."""
    folder, deadline = home.run(run_id).path, time.monotonic() + FILE_TIMEOUT
    while not folder.is_dir():
        if time.monotonic() > deadline:
            return f"the run's folder train/{run_id} is not there"
        time.sleep(0.2)
    return ""


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
    round_trip: float = 0.0
    """Seconds from the request to the report, the start of a process included."""
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
    faults = [*import_faults(working), *version_faults(reports, whole, required.versions)]
    return [*faults, *unshared_faults(whole, required), *interface_faults(whole, required.interface)]


def node_warnings(reports: Sequence[NodeReport], own: Mapping[str, str], everywhere: bool = False) -> list[str]:
    """Return a sentence for each tolerated difference of versions, and for each clock that differs."""
    whole = [each for each in reports if (each.trains or everywhere) and not each.problem]
    return [*_differences(whole, own, TOLERATED), *clock_warnings(reports)]


def import_faults(reports: Sequence[NodeReport]) -> list[str]:
    """Faults of nodes that cannot import DiTLab."""
    return [
        f"DiTLab cannot be imported on {_nodes(names)} ({reason}); send it along with `ditlab submit`, or with `ray "
        "job submit --working-dir . --runtime-env platform/runtime_env.yaml`, or install it on every node."
        for reason, names in _grouped((each.problem, each.name) for each in reports if each.problem)
    ]


def version_faults(all_nodes: Sequence[NodeReport], whole: Sequence[NodeReport], own: Mapping[str, str]) -> list[str]:
    """Faults of nodes with other versions of packages that must be the same."""
    return [
        *_differences(all_nodes, own, ["python", "ray"]),
        *_differences(whole, own, [name for name in own if name not in ("python", "ray", *TOLERATED)]),
    ]


def unshared_faults(reports: Sequence[NodeReport], required: NodeRequirements) -> list[str]:
    """Faults of nodes that do not see the launcher's files."""
    sentences = [
        f"DITLAB_HOME={required.home} is not shared: what is written there cannot be read on {_nodes(names)} "
        f"({reason}); point DITLAB_HOME at a folder on a file system that all nodes have mounted in the same place."
        for reason, names in _grouped((each.home, each.name) for each in reports if each.home)
    ]
    for reason, names in _grouped((each.storage, each.name) for each in reports if each.storage):
        is_uri = "://" in (required.storage or "")
        remedy = (
            "give that node the credentials, in the environment that `ray start` is called in, and a way to the store"
            if is_uri else "name a folder that all nodes have mounted in the same place, or an object store's URI"
        )  # fmt: skip
        state = "cannot be reached from every node" if is_uri else "is not shared"
        sentences.append(
            f"checkpoint.storage={required.storage} {state}: what is written there cannot be read on {_nodes(names)} "
            f"({reason}); {remedy}."
        )
    return sentences


def interface_faults(reports: Sequence[NodeReport], interface: str | None) -> list[str]:
    """Faults of nodes that lack the configured network interface."""
    lacking = [each for each in reports if interface and interface not in each.interfaces]
    return [
        missing_interface(str(interface), _nodes(names), existing.split(", "))
        for existing, names in _grouped((", ".join(each.interfaces), each.name) for each in lacking)
    ]


def clock_warnings(reports: Sequence[NodeReport]) -> list[str]:
    """Warnings about nodes whose clocks differ from the launcher's."""
    return [
        f"the clock of node {each.name} is {abs(each.skew):.0f} s {'ahead of' if each.skew > 0 else 'behind'} that of "
        "the launcher; let NTP set both, or the run's time stamps contradict each other."
        for each in reports
        if abs(each.skew) > MAX_SKEW
    ]


def _differences(reports: Sequence[NodeReport], own: Mapping[str, str], names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        required = own.get(name, "")
        others = ((each.versions[name], each.name) for each in reports if name in each.versions)
        unequal = [
            (version, node) for version, node in others if comparable(name, version) != comparable(name, required)
        ]
        found += [difference(name, version, nodes, required) for version, nodes in _grouped(unequal)]
    return found


def difference(name: str, version: str, nodes: Sequence[str], required: str) -> str:
    """Sentence on one package in another version than the launcher's."""
    if name == "ditlab":
        return (
            f"another version of DiTLab's code is on {_nodes(nodes)} ({version or 'none'}, and {required} where the "
            "run is launched); send the code along with `ditlab submit`, or install the same on every node."
        )
    if "/" in name:
        return (
            f"the folder {name} is not on the Python path of {_nodes(nodes)}; put it there, or send it along with the "
            "job, or install the package that holds it on every node."
        )
    label = "Python" if name == "python" else name
    what = f"{label} {version} is" if version else f"{label} is not"
    return (
        f"{what} installed on {_nodes(nodes)}, and {label} {required} where the run is launched; install "
        f"{'the same Python' if name == 'python' else f'{name}=={required}'} on every node."
    )


def comparable(name: str, version: str) -> str:
    """Part of a version that must be equal: Python's first two numbers, a library's version without the build.

    A head without GPU may have another build (`+cu128`).
    """
    if name == "python":
        return ".".join(version.split(".")[:2])
    return version.partition("+")[0]


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Pairs (value, node) as (value, its nodes), in order of values."""
    ordered = sorted(pairs)
    return [(value, [node for _, node in group]) for value, group in groupby(ordered, key=lambda pair: pair[0])]


def _nodes(names: Sequence[str]) -> str:
    """Names of nodes in a sentence: `node a`; `nodes a, b and c`; of many, the first ones."""
    if len(names) == 1:
        return f"node {names[0]}"
    shown = list(names) if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return f"nodes {', '.join(shown[:-1])} and {shown[-1]}"
