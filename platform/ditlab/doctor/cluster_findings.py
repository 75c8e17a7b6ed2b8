"""Findings of `ditlab doctor --cluster` from reports and measurements of nodes: pure functions."""

from collections.abc import Mapping, Sequence

from ditlab.cluster.nodes.allreduce import AllReduceResult
from ditlab.cluster.nodes.tasks import TaskResult
from ditlab.cluster.nodes.verdict import (
    NodeReport,
    NodeRequirements,
    import_faults,
    judge_nodes,
    unshared_faults,
    version_faults,
)
from ditlab.doctor.findings import Finding

MIN_FREE_BYTES = 5 * 2**30  # as for one machine
SLOW_STORAGE = 100e6
"""Bytes a second: a gigabit network carries 125e6; the state of a billion parameters, 16 GB, takes 160 s."""
SLOW_CPU, SLOW_GPU = 0.1e9, 1e9
"""Bytes a second of bus bandwidth: less than 1 and 10 Gb/s Ethernet carry (0.125e9 and 1.25e9)."""


def report_findings(reports: Sequence[NodeReport], silent: Sequence[str], required: NodeRequirements) -> list[Finding]:
    """Findings on nodes, versions, clocks, shared folders and free disk."""
    working = [each for each in reports if each.trains]
    whole = [each for each in working if not each.problem]
    names = ", ".join(f"{each.name}{'' if each.trains else ' (only drives)'}" for each in reports)
    found = [Finding("ok", "nodes", f"{len(reports)}: {names}")]
    found += [_split("missing", "nodes", sentence) for sentence in silent]
    if not working:
        found.append(Finding("missing", "nodes", "none has a CPU or GPU to train on", "add nodes"))
    found += _versions(reports, working, whole, required)
    found += _clocks(reports, judge_nodes(reports, required).warnings)
    unseen = unshared_faults(whole, required)
    found += [_split("missing", sentence.partition("=")[0], sentence) for sentence in unseen]
    for knob, value in (("DITLAB_HOME", required.home), ("checkpoint.storage", required.storage)):
        if value and whole and not any(sentence.startswith(knob) for sentence in unseen):
            found.append(Finding("ok", knob, f"{value}, seen by {_count(whole)}"))
    return [*found, *_disks(whole)]


def _versions(
    reports: Sequence[NodeReport],
    working: Sequence[NodeReport],
    whole: Sequence[NodeReport],
    required: NodeRequirements,
) -> list[Finding]:
    faults = [*import_faults(working), *version_faults(reports, whole, required.versions)]
    notes = [each for each in judge_nodes(reports, required).warnings if "install" in each]
    found = [_split("missing", "versions", sentence) for sentence in faults]
    found += [_split("note", "versions", sentence) for sentence in notes]
    if not found:
        own = ", ".join(f"{name} {version}" for name, version in required.versions.items())
        found.append(Finding("ok", "versions", f"the same on {_count(whole)}: {own}"))
    return found


def _clocks(reports: Sequence[NodeReport], warnings: Sequence[str]) -> list[Finding]:
    wrong = [_split("note", "clocks", sentence) for sentence in warnings if sentence.startswith("the clock")]
    if wrong or not reports:
        return wrong
    # A report travels for a moment, by which a right clock seems to be behind.
    return [Finding("ok", "clocks", f"within {max(abs(each.skew) for each in reports):.2f} s of this one's")]


def _disks(reports: Sequence[NodeReport]) -> list[Finding]:
    found = []
    for what, key in (("DITLAB_HOME", "home_free"), ("DITLAB_CACHE", "cache_free")):
        if not reports:
            continue
        fullest = min(reports, key=lambda report: getattr(report, key))
        free = getattr(fullest, key)
        text = f"{free / 2**30:.1f} GiB free on {fullest.name}{', the least' if len(reports) > 1 else ''}"
        enough = free >= MIN_FREE_BYTES
        remedy = "" if enough else f"free some space, or point {what} elsewhere"
        found.append(Finding("ok" if enough else "note", f"disk of {what}", text, remedy))
    return found


def speed_findings(what: str, written: Sequence[TaskResult], read: Sequence[TaskResult]) -> list[Finding]:
    """Findings on one shared place, which all nodes wrote to at the same time and then read from."""
    found = []
    for verb, results in (("writing", written), ("reading", read)):
        for result in results:
            if result.problem:
                remedy = "look at the place, the node's mount, its credentials"
                found.append(Finding("missing", f"{verb} {what}", f"{result.name}: {result.problem}", remedy))
        speeds = [(result.name, result.value) for result in results if not result.problem]
        if speeds:
            text = ", ".join(f"{name} {speed / 1e6:,.0f} MB/s" for name, speed in speeds)
            slow = min(speed for _, speed in speeds) < SLOW_STORAGE
            remedy = "below 100 MB/s, 16 GB of a billion parameters' state take over 160 s a checkpoint" if slow else ""
            found.append(Finding("note" if slow else "ok", f"{verb} {what}", text, remedy))
    return found


def tracking_findings(address: str, problems: Mapping[str, str]) -> list[Finding]:
    """Findings on MLflow; `problems` has, by node, the reason why it refuses that node, empty where it accepts it."""
    if address.startswith("sqlite"):
        remedy = "one file that many nodes write is locked at times; a server is named by MLFLOW_TRACKING_URI"
        return [Finding("note", "MLflow", f"the database {address.removeprefix('sqlite:///')}", remedy)]
    wrong = {node: problem for node, problem in problems.items() if problem}
    if wrong:
        remedy = "mend the server or that node's environment"
        return [
            Finding("missing", "MLflow", f"{address} from {node}: {problem}", remedy) for node, problem in wrong.items()
        ]
    return [Finding("ok", "MLflow", f"{address} answers {len(problems)} node{'s' if len(problems) > 1 else ''}")]


def all_reduce_findings(measured: AllReduceResult, use_gpu: bool) -> list[Finding]:
    """Findings on all-reduce: its bandwidth, or the nodes that do not reach each other."""
    how = "NCCL" if use_gpu else "gloo"
    if measured.problems:
        remedy = (
            "open all ports between the nodes (security group, firewall), or name the right interface: "
            "resources.network.interface, or GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME where nodes are started"
        )
        return [Finding("missing", "all-reduce", problem, remedy) for problem in measured.problems]
    if not measured.is_right:
        return [Finding("missing", "all-reduce", "a sum was wrong", "take nodes out to find the one at fault")]
    found, limit = [], SLOW_GPU if use_gpu else SLOW_CPU
    for size, seconds in measured.seconds.items():
        speed = measured.bus_bandwidth(size)
        is_slow = speed < limit and size == max(measured.seconds)
        gradients = 2 * (measured.num_members - 1) / measured.num_members * 4e9 / speed
        remedy = f"the gradients of a billion parameters take {gradients:.0f} s a step" if is_slow else ""
        text = (
            f"{speed / 1e9:.2f} GB/s bus bandwidth, {seconds * 1e3:.1f} ms, {measured.num_members} processes over "
            f"{how}, the sum is right"
        )
        found.append(Finding("note" if is_slow else "ok", f"all-reduce of {size >> 20} MiB", text, remedy))
    return found


def _split(verdict: str, what: str, sentence: str) -> Finding:
    """Finding from a sentence of the survey, which ends with its remedy."""
    found, _, remedy = sentence.rstrip(".").rpartition("; ")
    return Finding(verdict, what, found or remedy, remedy if found else "")  # type: ignore[arg-type]


def _count(reports: Sequence[NodeReport]) -> str:
    """Number of nodes, for messages."""
    return f"{len(reports)} node{'s' if len(reports) != 1 else ''}"
