"""Survey of every node before anything of a run exists: versions, shared folders, clock.

A node that joins after the launch is checked by its own worker.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster.node_report import FILE_TIMEOUT, node_report, versions
from ditlab.cluster.node_verdict import NodeReport, NodeRequirements, judge_nodes, unshared_faults, version_faults
from ditlab.cluster.nodes import NodeRow, TaskResult, alive_nodes, node_name, run_on_nodes
from ditlab.errors import UserError
from ditlab.home import Home, resolve_user_path, writable_folder
from ditlab.spec.experiment import Experiment
from ditlab.spec.plugins import plugin_packages
from ditlab.spec.uris import is_uri

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
    verdict = judge_nodes(reports, required, everywhere)
    if verdict.faults:
        raise UserError(verdict.faults[0])
    for sentence in (*silent, *verdict.warnings):
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
