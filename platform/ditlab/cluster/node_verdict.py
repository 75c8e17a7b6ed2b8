"""Verdict on the reports of nodes before a run: pure decisions, one sentence for each fault."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ditlab.runs.prepare import missing_interface

TOLERATED = ("mlflow", "pyarrow", "pydantic")
"""Packages that may differ between nodes, with a warning. All others must have the same version on all nodes."""
MAX_SKEW = 5.0  # seconds between two clocks: journals, locks and time stamps of checkpoints are of several nodes


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


@dataclass(frozen=True)
class NodeVerdict:
    """Faults that would make a run fail, and warnings; a sentence each."""

    faults: list[str]
    warnings: list[str]


def judge_nodes(reports: Sequence[NodeReport], required: NodeRequirements, everywhere: bool = False) -> NodeVerdict:
    """Verdict on all nodes; a fault stands before those that follow from it.

    A node that only drives needs the same Ray and Python alone, unless work may run `everywhere` (a sweep's trials are
    led from any node).
    """
    working = [each for each in reports if each.trains or everywhere]
    whole = [each for each in working if not each.problem]
    faults = [*import_faults(working), *version_faults(reports, whole, required.versions)]
    faults += [*unshared_faults(whole, required), *interface_faults(whole, required.interface)]
    warnings = [*_differences(whole, required.versions, TOLERATED), *clock_warnings(reports)]
    return NodeVerdict(faults, warnings)


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
