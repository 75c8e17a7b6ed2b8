"""Checks of `ditlab doctor --cluster`: reports and measurements, in order; no file of them outlives
the check.

Findings are pure functions of reports and measurements of nodes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Literal

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.node_report import versions
from ditlab.cluster.nodes import (
    NodeRow,
    TaskResult,
    alive_nodes,
    collect_results,
    node_label,
    run_on_nodes,
    start_task,
)
from ditlab.cluster.ray_internals import ray_internal
from ditlab.cluster.survey import (
    NodeReport,
    NodeRequirements,
    absolute,
    collect_reports,
    node_warnings,
    removed_if_empty,
    software_faults,
    unshared_faults,
)
from ditlab.home import Home
from ditlab.spec.uris import is_uri
from ditlab.spec.values import format_bytes
from ditlab.storage.local import writable_folder
from ditlab.storage.remote import RemoteFiles
from ditlab.tracking.access import (
    check_reachable,
    launch_address,
    redact,
    resolve_tracking_uri,
    sqlite_path,
)
from ditlab_addons.doctor.machine import MIN_FREE_BYTES, Finding, existing_folder, store_fault

HEAD_RESOURCE = "node:__internal_head__"
"""Resource that Ray gives to the head alone."""
# seconds for each check on all nodes: 64 MiB at 1 MB/s, or a process start on a busy node
CHECK_TIMEOUT = 120.0
CHUNK = 8 << 20
NUM_CHUNKS = 8  # 64 MiB: seconds on a slow disk, and more than its controller keeps
SIZE = CHUNK * NUM_CHUNKS
SLOW_STORAGE = 100e6
"""Bytes a second: a gigabit network carries 125e6; the state of a billion parameters, 16 GB, takes
160 s.
"""


def check_cluster(storage: str | None, say: Callable[[str], None]) -> list[Finding]:
    """Findings of every check of the cluster that this process is connected to.

    `storage`: place of checkpoints to be measured; `say` receives a line before each long check.
    Raises UserError where DITLAB_HOME or the storage cannot be written from here.
    """
    home = Home.from_environment()
    storage = absolute(storage) if storage else None
    say("collecting a report of every node ...")
    reports, silent = collect_reports(home, storage, CHECK_TIMEOUT)
    found = report_findings(reports, silent, NodeRequirements(versions(), str(home.root), storage))
    whole = {report.name: report for report in reports if report.trains and not report.problem}
    nodes = [node for node in alive_nodes() if node_label(node) in whole]
    found += disk_findings(run_on_nodes(nodes, free_bytes, str(home.root), timeout=CHECK_TIMEOUT))
    found.append(_check_token())
    if not nodes:
        return found
    found += _check_tracking(home, nodes)
    for what, place, key in (
        ("DITLAB_HOME", str(home.root), "home"),
        ("checkpoint.storage", storage, "storage"),
    ):
        seen = [node for node in nodes if not getattr(whole[node_label(node)], key)]
        if place and seen:
            say(f"writing to {what} and reading back, 64 MiB a node ...")
            found += _check_speeds(what, place, seen)
    return found


def _check_tracking(home: Home, nodes: list[NodeRow]) -> list[Finding]:
    """Findings on MLflow: each node asks a server with its own credentials."""
    uri = resolve_tracking_uri(launch_address(None, home), home)
    asked: list[TaskResult] = []
    if not uri.startswith("sqlite"):
        asked = run_on_nodes(nodes, tracking_problem, uri, timeout=CHECK_TIMEOUT)
    return tracking_findings(
        redact(uri), {result.name: result.problem or result.value for result in asked}
    )


def _check_token() -> Finding:
    """Finding on the token, by a request without one to the job server, if the head has one."""
    address = str(ray_internal("_global_node").webui_url or "")
    heads = [node for node in alive_nodes() if HEAD_RESOURCE in node["Resources"]]
    status = None
    if address and heads:
        (result,) = run_on_nodes(heads, status_without_token, address, timeout=CHECK_TIMEOUT)
        status = None if result.problem else result.value
    return token_finding(status, bool(ray_internal("is_token_auth_enabled")()))


def _check_speeds(what: str, place: str, nodes: list[NodeRow]) -> Iterator[Finding]:
    """Findings on the speed of a shared place: each node writes a file, all at once; then each
    reads another's.
    """
    names = [f".speed-{secrets.token_hex(8)}" for _ in nodes]
    with ExitStack() as stack:
        if not is_uri(place):
            stack.enter_context(removed_if_empty(Path(place)))
            writable_folder(Path(place), f"{what}={place}", "name a folder that can be written")

        @stack.callback
        def delete() -> None:
            for name in names:
                with suppress(OSError):
                    CheckpointStore.at(place).files.delete("", name)

        writing = {
            start_task(write_speed, node, place, name): node
            for node, name in zip(nodes, names, strict=True)
        }
        written = collect_results(writing, CHECK_TIMEOUT)
        there = [name for name, result in zip(names, written, strict=True) if not result.problem]
        files = cycle(there[1:] + there[:1])
        reading = {
            start_task(read_speed, node, place, name): node
            for node, name in zip(nodes, files, strict=False)
        }
        return speed_findings(what, written, collect_results(reading, CHECK_TIMEOUT))


def free_bytes(home: str) -> dict[str, int]:
    """Free bytes of the disks that DITLAB_HOME and DITLAB_CACHE lie on, or will lie on."""
    folders = {"DITLAB_HOME": home, "DITLAB_CACHE": os.environ.get("DITLAB_CACHE") or home}
    return {
        name: shutil.disk_usage(existing_folder(Path(folder))).free
        for name, folder in folders.items()
    }


def write_speed(place: str, name: str) -> float:
    """Bytes a second of writing a new file, until it is on disk or whole in the object store."""
    chunk = os.urandom(CHUNK)  # zeros would be compressed away by some disks
    began = time.perf_counter()
    CheckpointStore.at(place).files.write("", name, (chunk for _ in range(NUM_CHUNKS)))
    return SIZE / (time.perf_counter() - began)


def read_speed(place: str, name: str) -> float:
    """Bytes a second of reading a file that another node has written; this node's page cache of it
    is dropped.
    """
    files = CheckpointStore.at(place).files
    if not isinstance(files, RemoteFiles):
        descriptor = os.open(files.path / name, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    began = time.perf_counter()
    size = sum(map(len, files.chunks("", name)))
    assert size == SIZE, f"{size} bytes of {SIZE} were read"
    return size / (time.perf_counter() - began)


def tracking_problem(uri: str) -> str:
    """Reason why MLflow refuses this node with its own credentials; empty where it accepts it."""
    reason = check_reachable(uri)
    if reason:
        return f"does not answer ({reason})"
    return store_fault(uri, Home.from_environment())


def status_without_token(address: str) -> int | None:
    """HTTP status of a request to the job server without a token; None for no answer."""
    # it is a server of this node
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}/api/jobs/", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def report_findings(
    reports: Sequence[NodeReport], silent: Sequence[str], required: NodeRequirements
) -> list[Finding]:
    """Findings on nodes, versions, clocks and shared folders."""
    whole = [each for each in reports if each.trains and not each.problem]
    warnings = node_warnings(reports, required.versions)
    found = [*_node_findings(reports, silent)]

    count = f"{len(whole)} node{'s' * (len(whole) != 1)}"
    faults = [
        fault for each in reports for fault in software_faults(each, required.versions, each.trains)
    ]
    found += [_split("missing", "versions", sentence) for sentence in faults]
    found += [
        _split("note", "versions", sentence) for sentence in warnings if "install" in sentence
    ]
    if found[-1].what != "versions":
        own = ", ".join(f"{name} {version}" for name, version in required.versions.items())
        found.append(Finding("ok", "versions", f"the same on {count}: {own}"))
    found += _clock_findings(
        reports, [sentence for sentence in warnings if sentence.startswith("the clock")]
    )
    if whole:
        found += _shared_findings(whole, required, count)
    return found


def _node_findings(reports: Sequence[NodeReport], silent: Sequence[str]) -> Iterator[Finding]:
    """Findings on which nodes there are, and whether any trains."""
    names = [f"{each.name}{' (only drives)' * (not each.trains)}" for each in reports]
    yield Finding("ok", "nodes", f"{len(reports)}: {', '.join(names)}")
    yield from (_split("missing", "nodes", sentence) for sentence in silent)
    if not any(each.trains for each in reports):
        yield Finding("missing", "nodes", "none has a CPU or GPU to train on", "add nodes")


def _clock_findings(reports: Sequence[NodeReport], wrong: Sequence[str]) -> list[Finding]:
    """Findings on clocks: the wrong ones, or else the largest difference."""
    if wrong or not reports:
        return [_split("note", "clocks", sentence) for sentence in wrong]
    # A report travels for a moment, by which a right clock seems to be behind.
    return [
        Finding(
            "ok", "clocks", f"within {max(abs(each.skew) for each in reports):.2f} s of this one's"
        )
    ]


def _shared_findings(
    whole: Sequence[NodeReport], required: NodeRequirements, count: str
) -> Iterator[Finding]:
    """Findings on places that all nodes must see."""
    faults = [fault for each in whole for fault in unshared_faults(each, required)]
    unseen = [_split("missing", text.partition("=")[0], text) for text in faults]
    yield from unseen
    for option, value in (("DITLAB_HOME", required.home), ("checkpoint.storage", required.storage)):
        if value and not any(each.what == option for each in unseen):
            yield Finding("ok", option, f"{value}, seen by {count}")


def disk_findings(results: Sequence[TaskResult]) -> Iterator[Finding]:
    """Findings on the node with the least free space of each folder; `results` have the free bytes
    by folder.
    """
    yield from _problems("disk", results)
    measured = [result for result in results if not result.problem]
    if not measured:
        return
    for what in measured[0].value:
        free, name = min((result.value[what], result.name) for result in measured)
        text = f"{format_bytes(free)} free on {name}"
        if len(measured) > 1:
            text += ", the least"
        if free >= MIN_FREE_BYTES:
            yield Finding("ok", f"disk of {what}", text)
        else:
            remedy = f"free some space, or point {what} elsewhere"
            yield Finding("note", f"disk of {what}", text, remedy)


def speed_findings(
    what: str, written: Sequence[TaskResult], read: Sequence[TaskResult]
) -> Iterator[Finding]:
    """Findings on one shared place, which all nodes wrote to at the same time and then read
    from.
    """
    for verb, results in ((f"writing {what}", written), (f"reading {what}", read)):
        yield from _problems(verb, results)
        speeds = {result.name: result.value for result in results if not result.problem}
        if not speeds:
            continue
        text = ", ".join(f"{name} {speed / 1e6:,.0f} MB/s" for name, speed in speeds.items())
        if min(speeds.values()) >= SLOW_STORAGE:
            yield Finding("ok", verb, text)
            continue
        costs = "below 100 MB/s, 16 GB of a billion parameters' state take over 160 s a checkpoint"
        yield Finding("note", verb, text, costs)


def _problems(what: str, results: Sequence[TaskResult]) -> Iterator[Finding]:
    """Findings on nodes whose task has failed."""
    for result in results:
        if result.problem:
            remedy = "look at the place, the node's mount, its credentials"
            yield Finding("missing", what, f"{result.name}: {result.problem}", remedy)


def tracking_findings(address: str, problems: Mapping[str, str]) -> list[Finding]:
    """Findings on MLflow; `problems` has, by node, the reason why it refuses that node, empty where
    it accepts it.
    """
    if address.startswith("sqlite"):
        remedy = (
            "one file that many nodes write is locked at times; a server is named by "
            "MLFLOW_TRACKING_URI"
        )
        return [Finding("note", "MLflow", f"the database {sqlite_path(address)}", remedy)]
    remedy = "correct the server's or that node's environment"
    wrong = [
        Finding("missing", "MLflow", f"{address} from {node}: {problem}", remedy)
        for node, problem in problems.items()
        if problem
    ]
    answers = f"{address} answers {len(problems)} node{'s' * (len(problems) > 1)}"
    return wrong or [Finding("ok", "MLflow", answers)]


def _split(verdict: Literal["note", "missing"], what: str, sentence: str) -> Finding:
    """Finding from a sentence of the survey, which ends with its remedy."""
    found, separator, remedy = sentence.rstrip(".").rpartition("; ")
    if not separator:
        return Finding(verdict, what, remedy)  # the whole sentence
    return Finding(verdict, what, found, remedy)


def token_finding(status: int | None, has_token: bool) -> Finding:
    """Finding on the token: `status` is the job server's answer to a request without one, None for
    no answer. `has_token`: this process itself had to send a token."""
    is_closed = has_token if status is None else status in (401, 403)
    if is_closed and status:
        return Finding("ok", "token", f"on: without a token the job server answers {status}")
    if is_closed:
        return Finding("ok", "token", "on")
    remedy = (
        "start every node with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN or "
        "RAY_AUTH_TOKEN_PATH"
    )
    return Finding("missing", "token", "off: whoever reaches the cluster runs code on it", remedy)
