"""Findings of `ditlab doctor --cluster`, as pure functions of reports and measurements of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from ditlab.cluster.nodes import TaskResult
from ditlab.cluster.survey import NodeReport, NodeRequirements, node_warnings, software_faults, unshared_faults
from ditlab.spec.values import format_bytes
from ditlab.tracking.access import sqlite_path
from ditlab_addons.doctor.machine import MIN_FREE_BYTES, Finding

SLOW_STORAGE = 100e6
"""Bytes a second: a gigabit network carries 125e6; the state of a billion parameters, 16 GB, takes 160 s."""


def report_findings(reports: Sequence[NodeReport], silent: Sequence[str], required: NodeRequirements) -> list[Finding]:
    """Findings on nodes, versions, clocks and shared folders."""
    working = [each for each in reports if each.trains]
    whole = [each for each in working if not each.problem]
    warnings = node_warnings(reports, required.versions)
    found = [*_node_findings(reports, silent)]

    count = f"{len(whole)} node{'s' if len(whole) != 1 else ''}"
    faults = [fault for each in reports for fault in software_faults(each, required.versions, each.trains)]
    found += [_split("missing", "versions", sentence) for sentence in faults]
    found += [_split("note", "versions", sentence) for sentence in warnings if "install" in sentence]
    if found[-1].what != "versions":
        own = ", ".join(f"{name} {version}" for name, version in required.versions.items())
        found.append(Finding("ok", "versions", f"the same on {count}: {own}"))
    found += _clock_findings(reports, [sentence for sentence in warnings if sentence.startswith("the clock")])
    if whole:
        found += _shared_findings(whole, required, count)
    return found


def _node_findings(reports: Sequence[NodeReport], silent: Sequence[str]) -> Iterator[Finding]:
    """Findings on which nodes there are, and whether any trains."""
    names = ", ".join(each.name if each.trains else f"{each.name} (only drives)" for each in reports)
    yield Finding("ok", "nodes", f"{len(reports)}: {names}")
    yield from (_split("missing", "nodes", sentence) for sentence in silent)
    if not any(each.trains for each in reports):
        yield Finding("missing", "nodes", "none has a CPU or GPU to train on", "add nodes")


def _clock_findings(reports: Sequence[NodeReport], wrong: Sequence[str]) -> list[Finding]:
    """Findings on clocks: the wrong ones, or else the largest difference."""
    if wrong or not reports:
        return [_split("note", "clocks", sentence) for sentence in wrong]
    # A report travels for a moment, by which a right clock seems to be behind.
    return [Finding("ok", "clocks", f"within {max(abs(each.skew) for each in reports):.2f} s of this one's")]


def _shared_findings(whole: Sequence[NodeReport], required: NodeRequirements, count: str) -> Iterator[Finding]:
    """Findings on places that all nodes must see."""
    faults = [fault for each in whole for fault in unshared_faults(each, required)]
    unseen = [_split("missing", text.partition("=")[0], text) for text in faults]
    yield from unseen
    for option, value in (("DITLAB_HOME", required.home), ("checkpoint.storage", required.storage)):
        if value and not any(each.what == option for each in unseen):
            yield Finding("ok", option, f"{value}, seen by {count}")


def disk_findings(results: Sequence[TaskResult]) -> Iterator[Finding]:
    """Findings on the node with the least free space of each folder; `results` have the free bytes by folder."""
    yield from _problems("disk", results)
    measured = [result for result in results if not result.problem]
    for what in measured[0].value if measured else ():
        free, name = min((result.value[what], result.name) for result in measured)
        remedy = "" if free >= MIN_FREE_BYTES else f"free some space, or point {what} elsewhere"
        text = f"{format_bytes(free)} free on {name}{', the least' if len(measured) > 1 else ''}"
        yield Finding("note" if remedy else "ok", f"disk of {what}", text, remedy)


def speed_findings(what: str, written: Sequence[TaskResult], read: Sequence[TaskResult]) -> Iterator[Finding]:
    """Findings on one shared place, which all nodes wrote to at the same time and then read from."""
    for verb, results in ((f"writing {what}", written), (f"reading {what}", read)):
        yield from _problems(verb, results)
        speeds = {result.name: result.value for result in results if not result.problem}
        if not speeds:
            continue
        text = ", ".join(f"{name} {speed / 1e6:,.0f} MB/s" for name, speed in speeds.items())
        if min(speeds.values()) < SLOW_STORAGE:
            costs = "below 100 MB/s, 16 GB of a billion parameters' state take over 160 s a checkpoint"
            yield Finding("note", verb, text, costs)
        else:
            yield Finding("ok", verb, text)


def _problems(what: str, results: Sequence[TaskResult]) -> Iterator[Finding]:
    """Findings on nodes whose task has failed."""
    for result in results:
        if result.problem:
            remedy = "look at the place, the node's mount, its credentials"
            yield Finding("missing", what, f"{result.name}: {result.problem}", remedy)


def tracking_findings(address: str, problems: Mapping[str, str]) -> list[Finding]:
    """Findings on MLflow; `problems` has, by node, the reason why it refuses that node, empty where it accepts it."""
    if address.startswith("sqlite"):
        remedy = "one file that many nodes write is locked at times; a server is named by MLFLOW_TRACKING_URI"
        return [Finding("note", "MLflow", f"the database {sqlite_path(address)}", remedy)]
    remedy = "correct the server's or that node's environment"
    wrong = [
        Finding("missing", "MLflow", f"{address} from {node}: {problem}", remedy)
        for node, problem in problems.items()
        if problem
    ]
    answers = f"{address} answers {len(problems)} node{'s' if len(problems) > 1 else ''}"
    return wrong or [Finding("ok", "MLflow", answers)]


def _split(verdict: Literal["note", "missing"], what: str, sentence: str) -> Finding:
    """Finding from a sentence of the survey, which ends with its remedy."""
    found, _, remedy = sentence.rstrip(".").rpartition("; ")
    return Finding(verdict, what, found or remedy, remedy if found else "")


def token_finding(status: int | None, has_token: bool) -> Finding:
    """Finding on the token: `status` is the job server's answer to a request without one, None for no answer.
    `has_token`: this process itself had to send a token."""
    is_closed = has_token if status is None else status in (401, 403)
    if is_closed:
        return Finding("ok", "token", f"on: without a token the job server answers {status}" if status else "on")
    remedy = "start every node with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    return Finding("missing", "token", "off: whoever reaches the cluster runs code on it", remedy)
