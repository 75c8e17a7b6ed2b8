"""Checks of `ditlab doctor --cluster`: reports and measurements, in order; no file of them outlives the check.

Findings follow from reports and measurements of nodes (`findings`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import cycle
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.node_report import versions
from ditlab.cluster.nodes import NodeRow, alive_nodes, collect_results, node_label, run_on_nodes, start_task
from ditlab.cluster.ray_internals import ray_internal
from ditlab.cluster.survey import (
    NodeRequirements,
    absolute,
    collect_reports,
    removed_if_empty,
)
from ditlab.home import Home
from ditlab.spec.uris import is_uri
from ditlab.storage.local import writable_folder
from ditlab.storage.remote import RemoteFiles
from ditlab.tracking.access import (
    check_reachable,
    launch_address,
    redact,
    resolve_tracking_uri,
)
from ditlab_addons.doctor.findings import (
    disk_findings,
    report_findings,
    speed_findings,
    token_finding,
    tracking_findings,
)
from ditlab_addons.doctor.machine import Finding, existing_folder, store_fault

HEAD_RESOURCE = "node:__internal_head__"
"""Resource that Ray gives to the head alone."""
CHECK_TIMEOUT = 120.0  # seconds for each check on all nodes: 64 MiB at 1 MB/s, or a process start on a busy node
CHUNK = 8 << 20
NUM_CHUNKS = 8  # 64 MiB: seconds on a slow disk, and more than its controller keeps
SIZE = CHUNK * NUM_CHUNKS


def check_cluster(storage: str | None, say: Callable[[str], None]) -> list[Finding]:
    """Findings of every check of the cluster that this process is connected to.

    `storage`: place of checkpoints to be measured; `say` receives a line before each long check. Raises UserError where
    DITLAB_HOME or the storage cannot be written from here.
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
    found += _check_tracking(resolve_tracking_uri(launch_address(None, home), home), nodes)
    for what, place, key in (("DITLAB_HOME", str(home.root), "home"), ("checkpoint.storage", storage, "storage")):
        seen = [node for node in nodes if not getattr(whole[node_label(node)], key)]
        if place and seen:
            say(f"writing to {what} and reading back, 64 MiB a node ...")
            found += _check_speeds(what, place, seen)
    return found


def _check_tracking(uri: str, nodes: list[NodeRow]) -> list[Finding]:
    """Findings on MLflow, which every node asks but for a database."""
    asked = [] if uri.startswith("sqlite") else run_on_nodes(nodes, tracking_problem, uri, timeout=CHECK_TIMEOUT)
    return tracking_findings(redact(uri), {result.name: result.problem or result.value for result in asked})


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
    """Findings on the speed of a shared place: each node writes a file, all at once; then each reads another's."""
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

        writing = {start_task(write_speed, node, place, name): node for node, name in zip(nodes, names, strict=True)}
        written = collect_results(writing, CHECK_TIMEOUT)
        there = [name for name, result in zip(names, written, strict=True) if not result.problem]
        files = cycle(there[1:] + there[:1])
        reading = {start_task(read_speed, node, place, name): node for node, name in zip(nodes, files, strict=False)}
        return speed_findings(what, written, collect_results(reading, CHECK_TIMEOUT))


def free_bytes(home: str) -> dict[str, int]:
    """Free bytes of the disks that DITLAB_HOME and DITLAB_CACHE lie on, or will lie on."""
    folders = {"DITLAB_HOME": home, "DITLAB_CACHE": os.environ.get("DITLAB_CACHE") or home}
    return {name: shutil.disk_usage(existing_folder(Path(folder))).free for name, folder in folders.items()}


def write_speed(place: str, name: str) -> float:
    """Bytes a second of writing a new file, until it is on disk or whole in the object store."""
    chunk = os.urandom(CHUNK)  # zeros would be compressed away by some disks
    began = time.perf_counter()
    CheckpointStore.at(place).files.write("", name, (chunk for _ in range(NUM_CHUNKS)))
    return SIZE / (time.perf_counter() - began)


def read_speed(place: str, name: str) -> float:
    """Bytes a second of reading a file that another node has written; this node's page cache of it is dropped."""
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
    return f"does not answer ({reason})" if reason else store_fault(uri, Home.from_environment())


def status_without_token(address: str) -> int | None:
    """HTTP status of a request to the job server without a token; None for no answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is a server of this node
    try:
        with direct.open(f"http://{address}/api/jobs/", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None
