"""Checks of `ditlab doctor --cluster`: reports and measurements, in order; no file of them outlives the check."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.nodes.allreduce import all_reduce
from ditlab.cluster.nodes.membership import alive_nodes
from ditlab.cluster.nodes.report import versions
from ditlab.cluster.nodes.survey import absolute, can_train, collect_reports, removed_if_empty
from ditlab.cluster.nodes.tasks import NodeRow, collect_results, node_label, run_on_nodes, start_task
from ditlab.cluster.nodes.verdict import NodeReport, NodeRequirements
from ditlab.doctor.cluster_findings import all_reduce_findings, report_findings, speed_findings, tracking_findings
from ditlab.doctor.exposure import judge_exposure, read_exposure
from ditlab.doctor.findings import Finding
from ditlab.doctor.gpus import judge_gpus, matmul_error, parse_gpu, read_gpus
from ditlab.doctor.storage_speed import read_speed, tracking_problem, write_speed
from ditlab.home import Home, writable_folder
from ditlab.spec.uris import is_uri
from ditlab.tracking.access import launch_address, redact, resolve_tracking_uri

CHECK_TIMEOUT = 120.0  # seconds for each check on all nodes: 64 MiB at 1 MB/s, or a process start on a busy node


def check_cluster(storage: str | None, say: Callable[[str], None]) -> list[Finding]:
    """Findings of every check of the cluster that this process is connected to.

    Raises UserError where DITLAB_HOME or the storage cannot be written from here.

    Args:
        storage: place of checkpoints to be measured, None for none.
        say: receives a line before each long check.
    """
    home = Home.from_environment()
    storage = absolute(storage) if storage else None
    say("collecting a report of every node ...")
    reports, silent = collect_reports(home, storage, CHECK_TIMEOUT)
    found = report_findings(reports, silent, NodeRequirements(versions(), str(home.root), storage))
    found += judge_exposure(read_exposure(alive_nodes(), CHECK_TIMEOUT))
    nodes = _usable_nodes(reports)
    if not nodes:
        return found
    found += _check_tracking(nodes, home)
    for what, place, key in (("DITLAB_HOME", str(home.root), "home"), ("checkpoint.storage", storage, "storage")):
        seen = [node for node in nodes if not getattr(_report_of(node, reports), key)]
        if place and seen:
            say(f"writing to {what} and reading back, 64 MiB a node ...")
            found += _check_speeds(what, place, seen)
    gpu_nodes = [node for node in nodes if node["Resources"].get("GPU", 0) >= 1]
    if gpu_nodes:
        say("checking the GPUs ...")
        found += _check_gpus(gpu_nodes)
    if len(nodes) > 1:
        say("all-reduce between all nodes ...")
        group = gpu_nodes or nodes
        found += all_reduce_findings(all_reduce(group, use_gpu=bool(gpu_nodes)), bool(gpu_nodes))
    else:
        found.append(Finding("ok", "all-reduce", "one node: nothing to measure"))
    return found


def _usable_nodes(reports: list[NodeReport]) -> list[NodeRow]:
    """Nodes that train and can import DiTLab."""
    whole = {report.name for report in reports if report.trains and not report.problem}
    return [node for node in alive_nodes() if can_train(node) and node_label(node) in whole]


def _report_of(node: NodeRow, reports: list[NodeReport]) -> NodeReport:
    """Report of one node."""
    return next(report for report in reports if report.name == node_label(node))


def _check_tracking(nodes: list[NodeRow], home: Home) -> list[Finding]:
    """Findings on each node's access to MLflow."""
    uri = resolve_tracking_uri(launch_address(None, home), home)
    problems = {}
    if not uri.startswith("sqlite"):
        for result in run_on_nodes(nodes, tracking_problem, uri, timeout=CHECK_TIMEOUT):
            problems[result.name] = result.problem or result.value
    return tracking_findings(redact(uri), problems)


def _check_speeds(what: str, place: str, nodes: list[NodeRow]) -> list[Finding]:
    """Findings on the speed of a shared place: each node writes a file, all at once; then each reads another's."""
    names = [f".speed-{secrets.token_hex(8)}" for _ in nodes]
    with ExitStack() as stack:
        if not is_uri(place):
            stack.enter_context(removed_if_empty(Path(place)))
            writable_folder(Path(place), f"{what}={place}", "name a folder that can be written")
        stack.callback(_delete, place, names)
        writing = {start_task(write_speed, node, place, name): node for node, name in zip(nodes, names, strict=True)}
        written = collect_results(writing, CHECK_TIMEOUT)
        there = [name for name, result in zip(names, written, strict=True) if not result.problem]
        files = [there[(number + 1) % len(there)] for number in range(len(nodes))] if there else []
        reading = {start_task(read_speed, node, place, name): node for node, name in zip(nodes, files, strict=False)}
        return speed_findings(what, written, collect_results(reading, CHECK_TIMEOUT))


def _delete(place: str, names: list[str]) -> None:
    """Delete files of a place."""
    files = CheckpointStore.at(place).files
    for name in names:
        with suppress(OSError):
            files.delete("", name)


def _check_gpus(nodes: list[NodeRow]) -> list[Finding]:
    """Findings on every card by its driver, and on a matrix product of one free card of each node."""
    seen = run_on_nodes(nodes, read_gpus, timeout=CHECK_TIMEOUT)
    found = [Finding("note", f"GPUs of {one.name}", one.problem, "install the driver") for one in seen if one.problem]
    cards = [parse_gpu(one.name, row) for one in seen if not one.problem for row in one.value]
    tasks = {start_task(matmul_error, node, num_gpus=1): node for node in nodes}
    computed = collect_results(tasks, CHECK_TIMEOUT)
    for one in computed:
        if one.problem:
            found.append(Finding("note", f"GPU of {one.name}", f"computed nothing ({one.problem})", "is it in use?"))
    return [*found, *judge_gpus(cards, [(one.name, one.value) for one in computed if not one.problem])]
