"""Survey of every node before anything of a run exists: versions, shared folders, clock; one
sentence for each fault.

A node that joins after the launch is checked by its own worker.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.node_report import FILE_TIMEOUT, node_report, versions
from ditlab.cluster.nodes import alive_nodes, node_name, run_on_nodes, wait_for
from ditlab.errors import UserError, cannot_write
from ditlab.home import Home, resolve_user_path
from ditlab.runs.launch import Launch
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.spec.uris import is_uri
from ditlab.storage.local import writable_folder

TOLERATED = ("mlflow", "pyarrow", "pydantic")
"""Packages that may differ between nodes, with a warning. All others must have the same version on
all nodes.
"""
# seconds between two clocks: journals, locks and time stamps of checkpoints are of several nodes
MAX_SKEW = 5.0
REPORT_TIMEOUT = 60.0  # seconds for all reports: a node starts a process for its own, in one to ten


def check_nodes(
    experiment: Experiment, warn: Callable[[str], None], everywhere: bool = False
) -> None:
    """Raises UserError where a node cannot take part in the run; leaves nothing behind.

    `warn` receives warnings about nodes that may train all the same; `everywhere`: work may run on
    nodes without CPU or GPU as well.
    """
    home = Home.from_environment()
    storage = experiment.checkpoint.storage
    packages = tuple(plugin_packages(experiment.to_dict()))
    required = NodeRequirements(
        versions(packages=packages), str(home.root), absolute(storage) if storage else None
    )
    reports, silent = collect_reports(home, required.storage, packages=packages)
    faults = node_faults(reports, required, everywhere)
    if faults:
        raise UserError(faults[0])
    for sentence in (*silent, *node_warnings(reports, required.versions, everywhere)):
        warn(f"warning: {sentence}")


def collect_reports(
    home: Home, storage: str | None, timeout: float = REPORT_TIMEOUT, packages: Sequence[str] = ()
) -> tuple[list[NodeReport], list[str]]:
    """Reports of all nodes, and a sentence for each node that sent none.

    `storage` is a folder's absolute path or a URI, `packages` are those of the experiment's parts.
    Raises UserError where this machine cannot write there.
    """
    with probe_files(home, storage) as probe:
        arguments = (str(home.root), storage, probe, packages)
        results = run_on_nodes(
            alive_nodes(), node_report, *arguments, timeout=timeout, by_value=True
        )
    reports = []
    silent = []
    for result in results:
        if result.problem:
            silent.append(
                f"node {result.name} sent no report ({result.problem}); what it lacks will show "
                "when a worker starts there."
            )
            continue
        values = dict(result.value)
        skew = values.pop("clock") - result.received
        trains = any(result.node["Resources"].get(kind, 0) > 0 for kind in ("CPU", "GPU"))
        reports.append(NodeReport(result.name, trains, skew=skew, **values))
    return sorted(reports, key=lambda report: report.name), silent


def absolute(storage: str) -> str:
    """Storage as every node finds it: a folder by its absolute path, a URI unchanged."""
    if is_uri(storage):
        return storage
    return str(resolve_user_path(storage))


@contextmanager
def probe_files(home: Home, storage: str | None) -> Iterator[str]:
    """Write probe files into DITLAB_HOME and the storage for the length of the block; yields their
    name and content.

    Folders made for them are removed as well. Raises UserError where nothing can be written.
    """
    with ExitStack() as stack:
        what = f"DITLAB_HOME={home.root}"
        name = stack.enter_context(
            probe_file(home.root, what, "point DITLAB_HOME at a writable folder")
        )
        if storage is None:
            yield name
            return
        if not is_uri(storage):
            stack.enter_context(removed_if_empty(Path(storage)))
        files = CheckpointStore.at(storage).files
        files.check_writable()
        with files.translating_errors(
            "cannot be written", "name a place that every node can write into"
        ):
            files.write("", name, [name.encode()])
        try:
            yield name
        finally:
            with files.translating_errors(
                "takes nothing back", "check that files can be deleted there, too"
            ):
                files.delete("", name)


@contextmanager
def probe_file(folder: Path, what: str, remedy: str) -> Iterator[str]:
    """Write a probe file into a folder for the length of the block; yields its name, which is its
    content.

    Raises UserError, with `what` and `remedy`, where the folder cannot be written.
    """
    name = f".probe-{secrets.token_hex(8)}"
    with removed_if_empty(folder):
        writable_folder(folder, what, remedy)
        try:
            (folder / name).write_text(name)
        except OSError as error:
            raise cannot_write(what, error, remedy) from error
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


def check_joining_node(launch: Launch) -> None:
    """Raises UserError, as the survey does, where this node has other versions than the launcher
    recorded, or does not see the run's folder; a run on the launcher's machine records none.
    """
    if not launch.versions:
        return
    problem = ""
    if not wait_for(launch.folder.path.is_dir, FILE_TIMEOUT):
        problem = f"the run's folder train/{launch.run_id} is not there"
    packages = plugin_packages(launch.experiment.to_dict())
    report = NodeReport(node_name(), True, versions(packages=packages), home=problem)
    faults = node_faults([report], NodeRequirements(launch.versions, str(launch.home.root)))
    if faults:
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
    skew: float = 0.0
    """Seconds by which its clock is ahead of the launcher's."""


@dataclass(frozen=True)
class NodeRequirements:
    """Requirements on every node: versions and shared folders."""

    versions: Mapping[str, str]
    home: str
    storage: str | None = None


def node_faults(
    reports: Sequence[NodeReport], required: NodeRequirements, everywhere: bool = False
) -> list[str]:
    """Return a sentence for each fault that would make a run fail; a fault stands before those that
    follow from it.

    A node that only drives needs the same Ray and Python alone, unless work may run `everywhere` (a
    sweep's trials are led from any node).
    """
    faults = []
    for report in reports:
        works = report.trains or everywhere
        faults += software_faults(report, required.versions, works)
        if works and not report.problem:
            faults += unshared_faults(report, required)
    return faults


def node_warnings(
    reports: Sequence[NodeReport], own: Mapping[str, str], everywhere: bool = False
) -> list[str]:
    """Return a sentence for each tolerated difference of versions, and for each clock that
    differs.
    """
    found = []
    for report in reports:
        if (report.trains or everywhere) and not report.problem:
            found += _differences(report, own, TOLERATED)
            if abs(report.skew) > MAX_SKEW:
                direction = "ahead of" if report.skew > 0 else "behind"
                found.append(
                    f"the clock of node {report.name} is {abs(report.skew):.0f} s {direction} "
                    "that of the launcher; let NTP set both, or the run's time stamps contradict "
                    "each other."
                )
    return found


def software_faults(report: NodeReport, own: Mapping[str, str], works: bool) -> list[str]:
    """Faults of a node that cannot import DiTLab, or has other versions of packages that must be
    the same.

    A node that does not work needs the same Python and Ray alone.
    """
    if works and report.problem:
        return [
            f"DiTLab cannot be imported on node {report.name} ({report.problem}); send it "
            "along with `ditlab submit`, or install it on every node."
        ]
    if works:
        names = [name for name in own if name not in TOLERATED]
    else:
        names = ["python", "ray"]
    return _differences(report, own, names)


def unshared_faults(report: NodeReport, required: NodeRequirements) -> list[str]:
    """Faults of a node that does not see the launcher's files."""
    remedy = "name a folder that all nodes have mounted in the same place"
    faults = []
    if report.home:
        faults.append(
            f"DITLAB_HOME={required.home} is not shared: what is written there cannot be read "
            f"on node {report.name} ({report.home}); {remedy}."
        )
    if report.storage:
        faults.append(
            f"checkpoint.storage={required.storage} is not shared: what is written there "
            f"cannot be read on node {report.name} ({report.storage}); {remedy}, or give that "
            "node the credentials of the store."
        )
    return faults


def _differences(report: NodeReport, own: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Sentences on packages of a node in another version than the launcher's."""
    found = []
    for name in names:
        required = own.get(name, "")
        version = report.versions.get(name, required)
        if _comparable(name, version) != _comparable(name, required):
            what = f"{name} {version} is" if version else f"{name} is not"
            found.append(
                f"{what} installed on node {report.name}, and {name} {required} where the run "
                "is launched; install the same on every node, or send DiTLab's code along with "
                "`ditlab submit`."
            )
    return found


def _comparable(name: str, version: str) -> str:
    """Return what counts of a version: of Python two numbers, of a library all but the build
    (`+cu128`).
    """
    if name == "python":
        return ".".join(version.split(".")[:2])
    return version.partition("+")[0]
