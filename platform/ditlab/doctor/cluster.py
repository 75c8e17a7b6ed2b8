"""`ditlab doctor --cluster`: asks and measures, in order; nothing of it outlives the check."""

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import ray

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster import cluster_findings as findings
from ditlab.cluster.nodes.allreduce import all_reduce
from ditlab.cluster.nodes.membership import alive_nodes
from ditlab.cluster.nodes.report import versions
from ditlab.cluster.nodes.survey import absolute, can_train, collect_reports, made
from ditlab.cluster.nodes.tasks import NodeRow, collect, node_label, node_options, run_on_nodes
from ditlab.cluster.nodes.verdict import NodeReport, NodeRequirements
from ditlab.doctor.exposure import judge_exposure, read_exposure
from ditlab.doctor.findings import Finding
from ditlab.doctor.gpus import judge_gpus, matmul_error, parse_gpu, read_gpus
from ditlab.doctor.storage_speed import read_speed, tracking_problem, write_speed
from ditlab.home import Home, writable_folder
from ditlab.spec.uris import is_uri
from ditlab.tracking.address import launch_address, redact, resolve_tracking_uri

PATIENCE = 120.0  # seconds for each measurement on all nodes: 64 MiB at 1 MB/s, or a process start on a busy node


def check_connected(storage: str | None, say: Callable[[str], None]) -> list[Finding]:
    """Every check of the cluster that this process is connected to; `say` hears what is about to be measured.

    Raises UserError where DITLAB_HOME or the storage cannot be written from here.
    """
    home = Home.from_environment()
    storage = absolute(storage) if storage else None
    say("asking every node ...")
    reports, silent = collect_reports(home, storage, PATIENCE)
    wanted = NodeRequirements(versions(), str(home.root), storage)
    found = findings.of_reports(reports, silent, wanted)
    found += judge_exposure(read_exposure(alive_nodes(), PATIENCE))
    nodes = _fit(reports)
    if not nodes:
        return found
    found += _tracking(nodes, home)
    for what, place, key in (("DITLAB_HOME", str(home.root), "home"), ("checkpoint.storage", storage, "storage")):
        seen = [node for node in nodes if not getattr(_report_of(node, reports), key)]
        if place and seen:
            say(f"writing to {what} and reading back, 64 MiB a node ...")
            found += _speeds(what, place, seen)
    gpu_nodes = [node for node in nodes if node["Resources"].get("GPU", 0) >= 1]
    if gpu_nodes:
        say("looking at the GPUs ...")
        found += _gpus(gpu_nodes)
    if len(nodes) > 1:
        say("all-reduce between all nodes ...")
        group = gpu_nodes or nodes
        found += findings.of_all_reduce(all_reduce(group, use_gpu=bool(gpu_nodes)), bool(gpu_nodes))
    else:
        found.append(Finding("ok", "all-reduce", "one node: nothing to measure"))
    return found


def _fit(reports: list[NodeReport]) -> list[NodeRow]:
    """Nodes that train and have DiTLab."""
    whole = {report.name for report in reports if report.trains and not report.problem}
    return [node for node in alive_nodes() if can_train(node) and node_label(node) in whole]


def _report_of(node: NodeRow, reports: list[NodeReport]) -> NodeReport:
    return next(report for report in reports if report.name == node_label(node))


def _tracking(nodes: list[NodeRow], home: Home) -> list[Finding]:
    uri = resolve_tracking_uri(launch_address(None, home), home)
    problems = {}
    if not uri.startswith("sqlite"):
        for answer in run_on_nodes(nodes, tracking_problem, uri, patience=PATIENCE):
            problems[answer.name] = answer.problem or answer.value
    return findings.of_tracking(redact(uri), problems)


def _speeds(what: str, place: str, nodes: list[NodeRow]) -> list[Finding]:
    """Each node writes a file, all at once; then each reads that of the next one."""
    names = [f".speed-{secrets.token_hex(8)}" for _ in nodes]
    with ExitStack() as stack:
        if not is_uri(place):
            stack.enter_context(made(Path(place)))
            writable_folder(Path(place), f"{what}={place}", "name a folder that can be written")
        stack.callback(_delete, place, names)
        writing = {_start(write_speed, node, place, name): node for node, name in zip(nodes, names, strict=True)}
        written = collect(writing, PATIENCE, time.time())
        there = [name for name, answer in zip(names, written, strict=True) if not answer.problem]
        turns = {node["NodeID"]: there[(number + 1) % len(there)] for number, node in enumerate(nodes)} if there else {}
        reading = {_start(read_speed, node, place, turns[node["NodeID"]]): node for node in nodes if there}
        return findings.of_speeds(what, written, collect(reading, PATIENCE, time.time()))


def _start(function: Callable[..., float], node: NodeRow, *arguments: str) -> Any:
    return ray.remote(function).options(max_retries=0, **node_options(node)).remote(*arguments)


def _delete(place: str, names: list[str]) -> None:
    files = CheckpointStore.at(place).files
    for name in names:
        with suppress(OSError):
            files.delete("", name)


def _gpus(nodes: list[NodeRow]) -> list[Finding]:
    """What the drivers say of every card; what one free card of each node computes."""
    seen = run_on_nodes(nodes, read_gpus, patience=PATIENCE)
    found = [Finding("note", f"GPUs of {one.name}", one.problem, "install the driver") for one in seen if one.problem]
    cards = [parse_gpu(one.name, row) for one in seen if not one.problem for row in one.value]
    task = ray.remote(matmul_error)
    asked = {task.options(max_retries=0, **node_options(node, num_gpus=1)).remote(): node for node in nodes}
    computed = collect(asked, PATIENCE, time.time())
    for one in computed:
        if one.problem:
            found.append(Finding("note", f"GPU of {one.name}", f"computed nothing ({one.problem})", "is it in use?"))
    return [*found, *judge_gpus(cards, [(one.name, one.value) for one in computed if not one.problem])]
