"""Judges what nodes report before a run: purely, in one sentence a fault."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

DECISIVE = ("python", "ray", "torch", "deepspeed", "ditlab")
"""What must be the same on all nodes; of the rest a difference is worth a note."""
SKEW = 5.0  # seconds between two clocks: journals, locks and time stamps of checkpoints are of several nodes


@dataclass(frozen=True)
class NodeReport:
    """One node, as it sees itself and what the launcher has written."""

    name: str
    """For people: host name, address, the beginning of Ray's id."""
    trains: bool
    """Whether it has a CPU or a GPU: a head may be there to drive alone."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """As `node_report.versions` has them."""
    problem: str = ""
    """Why DiTLab cannot be imported there."""
    home: str = ""
    """Why the probe below DITLAB_HOME cannot be read there."""
    storage: str = ""
    """Why the probe below `checkpoint.storage` cannot be read there."""
    interfaces: Sequence[str] = ()
    """Names of its network interfaces."""
    skew: float = 0.0
    """Seconds that its clock is ahead of the launcher's."""
    round_trip: float = 0.0
    """Seconds from the question to the answer, the start of a process included."""
    home_free: int = 0
    """Bytes free on the disk that DITLAB_HOME lies on."""
    cache_free: int = 0
    """Bytes free on the disk that DITLAB_CACHE lies on."""


@dataclass(frozen=True)
class Wanted:
    """What every node shall have and see, in words of the launcher."""

    versions: Mapping[str, str]
    home: str
    storage: str | None = None
    interface: str | None = None


@dataclass(frozen=True)
class Judgement:
    """Sentences: what a run would fail of, and what is worth knowing."""

    faults: list[str]
    warnings: list[str]


def judge(reports: Sequence[NodeReport], wanted: Wanted, everywhere: bool = False) -> Judgement:
    """The faults first that others follow from. A node that only drives is held to Ray's and Python's versions alone,
    unless work may run `everywhere` (a sweep's trials are led from any node)."""
    working = [each for each in reports if each.trains or everywhere]
    whole = [each for each in working if not each.problem]
    faults = [*missing(working), *differing(reports, whole, wanted.versions)]
    faults += [*unshared(whole, wanted), *without_interface(whole, wanted.interface)]
    others = [name for name in wanted.versions if name not in DECISIVE]
    warnings = [*_differences(whole, wanted.versions, others), *skewed(reports)]
    return Judgement(faults, warnings)


def missing(reports: Sequence[NodeReport]) -> list[str]:
    """Nodes without DiTLab."""
    return [
        f"DiTLab cannot be imported on {_nodes(names)} ({reason}); send it along with `ditlab submit`, or with `ray "
        "job submit --working-dir . --runtime-env platform/runtime_env.yaml`, or install it on every node."
        for reason, names in _grouped((each.problem, each.name) for each in reports if each.problem)
    ]


def differing(all_nodes: Sequence[NodeReport], whole: Sequence[NodeReport], own: Mapping[str, str]) -> list[str]:
    """Nodes with other versions of what must be the same."""
    return [
        *_differences(all_nodes, own, ["python", "ray"]),
        *_differences(whole, own, [name for name in DECISIVE if name not in ("python", "ray")]),
    ]


def unshared(reports: Sequence[NodeReport], wanted: Wanted) -> list[str]:
    """Nodes that do not see what the launcher writes."""
    sentences = [
        f"DITLAB_HOME={wanted.home} is not shared: what is written there cannot be read on {_nodes(names)} ({reason}); "
        "point DITLAB_HOME at a folder on a file system that all nodes have mounted in the same place."
        for reason, names in _grouped((each.home, each.name) for each in reports if each.home)
    ]
    for reason, names in _grouped((each.storage, each.name) for each in reports if each.storage):
        is_uri = "://" in (wanted.storage or "")
        remedy = (
            "give that node the credentials, in the environment that `ray start` is called in, and a way to the store"
            if is_uri else "name a folder that all nodes have mounted in the same place, or an object store's URI"
        )  # fmt: skip
        state = "cannot be reached from every node" if is_uri else "is not shared"
        sentences.append(
            f"checkpoint.storage={wanted.storage} {state}: what is written there cannot be read on {_nodes(names)} "
            f"({reason}); {remedy}."
        )
    return sentences


def without_interface(reports: Sequence[NodeReport], interface: str | None) -> list[str]:
    """Nodes that lack the network interface that workers shall use."""
    lacking = [each for each in reports if interface and interface not in each.interfaces]
    return [
        f"resources.network.interface={interface} does not exist on {_nodes(names)}, which has {has}; name one that "
        "every node has, or set it to null."
        for has, names in _grouped((", ".join(each.interfaces), each.name) for each in lacking)
    ]


def skewed(reports: Sequence[NodeReport]) -> list[str]:
    """Nodes whose clocks are wrong, or else the launcher's."""
    return [
        f"the clock of node {each.name} is {abs(each.skew):.0f} s {'ahead of' if each.skew > 0 else 'behind'} that of "
        "the launcher; let NTP set both, or the run's time stamps contradict each other."
        for each in reports
        if abs(each.skew) > SKEW
    ]


def _differences(reports: Sequence[NodeReport], own: Mapping[str, str], names: Sequence[str]) -> list[str]:
    found = []
    for name in names:
        wanted = own.get(name, "")
        others = ((each.versions[name], each.name) for each in reports if name in each.versions)
        unequal = [(version, node) for version, node in others if comparable(name, version) != comparable(name, wanted)]
        found += [difference(name, version, nodes, wanted) for version, nodes in _grouped(unequal)]
    return found


def difference(name: str, version: str, nodes: Sequence[str], wanted: str) -> str:
    """The sentence for one package in another version than the launcher's."""
    if name == "ditlab":
        return (
            f"another version of DiTLab's code is on {_nodes(nodes)} ({version or 'none'}, and {wanted} where the run "
            "is launched); send the code along with `ditlab submit`, or install the same on every node."
        )
    label = "Python" if name == "python" else name
    what = f"{label} {version} is" if version else f"{label} is not"
    return (
        f"{what} installed on {_nodes(nodes)}, and {label} {wanted} where the run is launched; install "
        f"{'the same Python' if name == 'python' else f'{name}=={wanted}'} on every node."
    )


def comparable(name: str, version: str) -> str:
    """The part of a version that must be equal: of Python the first two numbers; of libraries not the build (`+cu128`),
    as a head without GPU may have another one."""
    if name == "python":
        return ".".join(version.split(".")[:2])
    return version.partition("+")[0]


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """(value, node) pairs as (value, its nodes), in order of values."""
    ordered = sorted(pairs)
    return [(value, [node for _, node in group]) for value, group in groupby(ordered, key=lambda pair: pair[0])]


def _nodes(names: Sequence[str]) -> str:
    """`node a`; `nodes a, b and c`; of many, the first ones."""
    if len(names) == 1:
        return f"node {names[0]}"
    shown = list(names) if len(names) <= 4 else [*names[:3], f"{len(names) - 3} more"]
    return f"nodes {', '.join(shown[:-1])} and {shown[-1]}"
