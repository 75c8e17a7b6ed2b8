"""Asks every node, before anything of a run exists, whether it could take part: versions, shared folders, clock."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ditlab.checkpoints.store import CheckpointStore
from ditlab.cluster import node_report
from ditlab.cluster.nodes.membership import alive_nodes
from ditlab.cluster.nodes.tasks import NodeRow, TaskResult, run_on_nodes
from ditlab.cluster.nodes.verdict import NodeReport, NodeRequirements, judge_nodes
from ditlab.errors import UserError
from ditlab.home import Home, writable_folder
from ditlab.spec.experiment import Experiment
from ditlab.spec.uris import is_uri

PATIENCE = 60.0  # seconds for all answers: a node starts a process for its own, in one to ten


def check_nodes(experiment: Experiment, warn: Callable[[str], None], everywhere: bool = False) -> None:
    """Raises UserError where a node cannot take part in the run, and leaves nothing behind."""
    home, storage = Home.from_environment(), experiment.checkpoint.storage
    wanted = NodeRequirements(
        node_report.versions(), str(home.root), absolute(storage) if storage else None,
        experiment.resources.network.interface,
    )  # fmt: skip
    reports, silent = collect_reports(home, wanted.storage)
    judgement = judge_nodes(reports, wanted, everywhere)
    if judgement.faults:
        raise UserError(judgement.faults[0])
    for sentence in (*silent, *judgement.warnings):
        warn(f"warning: {sentence}")


def collect_reports(home: Home, storage: str | None, patience: float = PATIENCE) -> tuple[list[NodeReport], list[str]]:
    """What each node reports, and a sentence for each that does not. Raises UserError where this one cannot write.

    `storage` is a folder's absolute path or a URI.
    """
    with probe_files(home, storage) as probe:
        question = (str(home.root), storage, probe)
        answers = run_on_nodes(alive_nodes(), node_report.node_report, *question, patience=patience, by_value=True)
    reports = [_report(answer) for answer in answers if not answer.problem]
    silent = [
        f"node {answer.name} could not be asked ({answer.problem}); what it lacks will show when a worker starts there."
        for answer in answers
        if answer.problem
    ]
    return sorted(reports, key=lambda report: report.name), silent


def _report(answer: TaskResult) -> NodeReport:
    said = {**answer.value, "skew": answer.value["clock"] - answer.heard, "round_trip": answer.heard - answer.asked}
    del said["clock"]
    return NodeReport(name=answer.name, trains=can_train(answer.node), **said)


def can_train(node: NodeRow) -> bool:
    """Whether a node has anything to train on."""
    return any(node["Resources"].get(kind, 0) > 0 for kind in ("CPU", "GPU"))


def absolute(storage: str) -> str:
    """A folder's path as every node shall find it; a URI as it is."""
    return storage if is_uri(storage) else str(Path(storage).expanduser().resolve())


@contextmanager
def probe_files(home: Home, storage: str | None) -> Iterator[str]:
    """Inside, files of this name, which hold it, lie in DITLAB_HOME and at the storage; folders made for them go, too.

    Raises UserError where nothing can be written.
    """
    name = f".probe-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        stack.enter_context(made(home.root))
        writable_folder(home.root, f"DITLAB_HOME={home.root}", "point DITLAB_HOME at a writable folder")
        (home.root / name).write_text(name)
        stack.callback((home.root / name).unlink, missing_ok=True)
        if storage is not None:
            if not is_uri(storage):
                stack.enter_context(made(Path(storage)))
            store = CheckpointStore.at(storage)
            store.check_writable()
            with store.files.named("cannot be written", "name a place that every node can write into"):
                store.files.write("", name, [name.encode()])
            stack.callback(_delete, store, name)
        yield name


def _delete(store: CheckpointStore, name: str) -> None:
    with store.files.named("takes nothing back", "check that files can be deleted there, too"):
        store.files.delete("", name)


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Inside, the folder may be made; what was not there before and is empty at the end goes."""
    new: Sequence[Path] = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    finally:
        with suppress(OSError):
            for each in new:
                each.rmdir()
