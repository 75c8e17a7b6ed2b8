"""Description of one run for people: status, spec, last metrics, paths, sizes, checkpoints, and
what MLflow lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ditlab.averages import FOLDER
from ditlab.checkpoints.manifest import committed
from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.reports.time_summary import TIMED, TimeSummary, time_summary
from ditlab.runs.lineage import LineageRun, lineage
from ditlab.runs.locks import RunningState, is_locked, running_state
from ditlab.runs.requests import open_requests
from ditlab.secrets import hide
from ditlab.spec.uris import is_uri
from ditlab.spec.yaml_text import read_recorded
from ditlab.storage.files import folder_size
from ditlab.storage.local import LocalFiles
from ditlab.tracking.access import redact, resolve_tracking_uri
from ditlab.tracking.history import PROOF_TAG, STRAGGLER_TAG, JournalFacts, series_of
from ditlab.tracking.journal import JournalContent, damaged_lines, read_content
from ditlab.tracking.names import flatten
from ditlab.tracking.records import FoundRun, RunRecord, list_runs
from ditlab.tracking.upload import num_unsent

_ESSENTIALS = (
    "seed",
    "model.family",
    "model.init.from",
    "data.kind",
    "data.path",
    "data.weights.*",
    "batch.size",
    "batch.micro",
    "optimizer.kind",
    "optimizer.lr",
    "schedule.kind",
    "training.steps",
    "training.epochs",
    "training.precision",
    "engine.zero.stage",
    "resources.workers",
    "resources.gpus_per_worker",
    "start.run",
    "start.step",
    "start.state",
    "tracking.experiment",
    "base.name",
    "base.run",
    "search.kind",
    "scheduler.kind",
    "metric",
    "mode",
    "trials",
    "samples",
)
"""Fields of an experiment or a sweep that are shown, in this order; `*` is any name."""
_PARTS = ("checkpoints", "media", "samples", "report")


@dataclass(frozen=True)
class RunDescription:
    """One run or sweep, as `ditlab runs show` prints it."""

    folder: RunFolder
    record: RunRecord
    is_locked: bool
    """True if a process trains it now."""
    running: RunningState | None
    """State of its process; None where the record has its end."""
    tracking_uri: str
    """MLflow's address, without a password."""
    unsent: int | None
    """Records that MLflow has not received; None where the journal cannot be read."""
    spec: dict[str, str]
    """Essential fields of the spec, by dotted path."""
    metrics: dict[str, tuple[int, float]]
    """Step and value of the last point of each metric."""
    checkpoint_place: str
    """Path or URI of the folder of checkpoints; empty for a sweep."""
    checkpoint_steps: list[int]
    """Steps of the committed ones, oldest first."""
    sizes: dict[str, int]
    """Bytes by part of the folder, and `total`."""
    trials: Mapping[Any, int]
    """Number of a sweep's trials by status."""
    notes: list[str]
    """Sentences on files that cannot be read."""
    time: TimeSummary | None
    """Where the time of its steps went; None for a sweep, and for a run that has logged no
    times.
    """
    proof: str
    """Verdict of `ditlab train --prove` before it began; empty for a run that was not proved."""
    held_out_text: str
    """Sentence on why `eval/...` and `held_out/...` differ, where it has both."""
    lineage: LineageRun | None
    """Tree of the runs that it goes on from and of those that go on from it; None where there are
    neither.
    """

    def to_dict(self) -> dict[str, Any]:
        """The description in JSON's types, for `--json`."""
        record = self.record
        names = (
            "run_id",
            "name",
            "family",
            "status",
            "message",
            "step",
            "total_steps",
            "created",
            "updated",
            "spec_hash",
            "parent",
            "trial",
            "plugins",
        )
        return {
            **{name: getattr(record, name) for name in names},
            "is_locked": self.is_locked,
            "running": self.running._asdict() if self.running else None,
            "folder": str(self.folder.path),
            "tracking_uri": self.tracking_uri,
            "unsent": self.unsent,
            "spec": self.spec,
            "metrics": {
                name: {"step": step, "value": value} for name, (step, value) in self.metrics.items()
            },
            "checkpoints": {"place": self.checkpoint_place, "steps": self.checkpoint_steps},
            "bytes": self.sizes,
            "trials": self.trials,
            "notes": self.notes,
            "time": self.time.to_dict() if self.time else None,
            "start": record.start or None,
            "proof": self.proof or None,
            "lineage": self.lineage.to_dict() if self.lineage else None,
        }


def describe_run(home: Home, found: FoundRun) -> RunDescription:
    """Describe a run. Reads its files and changes none; a file that cannot be read becomes a
    note.
    """
    folder = found.folder
    record = found.record
    notes = [*filter(None, [found.note])]
    is_sweep = record.trials > 0 and not record.is_group
    spec = flat_spec(folder.path / ("sweep.yaml" if is_sweep else "spec.yaml"), notes)
    address = resolve_tracking_uri(record.tracking_uri or None, home)
    try:
        home.check_place()
    except UserError as error:
        notes.append(str(error))
    content, unsent = _journal(folder, address, home, notes)
    notes += [f"asked for and not done yet: {request.verb}." for request in open_requests(folder)]
    if content.num_damaged:
        notes.append(f"{folder.journal}: {damaged_lines(content.num_damaged)}")
    facts = JournalFacts.of(content)
    metrics = {name: (p.steps[-1], p.values[-1]) for name, p in content.metrics.items()}
    records = list_runs(home)
    trials: Counter[str] = Counter()
    place = ""
    steps: list[int] = []
    if record.trials:
        trials.update(each.status for each in records if each.parent == record.run_id)
    else:
        place, steps = _checkpoints(folder, spec, notes)
    running = None
    if record.status == "running":
        running = running_state(folder, record)
    return RunDescription(
        folder,
        record,
        is_locked(folder),
        running,
        redact(address),
        unsent,
        _essentials(spec),
        metrics,
        place,
        steps,
        _sizes(folder.path),
        trials,
        notes,
        run_time(content),
        hide(facts.tags.get(PROOF_TAG, "")),
        facts.held_out_text(metrics),
        lineage(records, record.run_id),
    )


def _journal(
    folder: RunFolder, address: str, home: Home, notes: list[str]
) -> tuple[JournalContent, int | None]:
    """Content of the journal, and the number of records that the address has not received."""
    content = JournalContent()
    try:
        content = read_content(folder.journal)
        return content, num_unsent(folder, address, home)
    except FileNotFoundError:
        return content, 0
    except OSError as error:
        notes.append(f"{folder.journal} cannot be read ({first_line(error)}).")
    return content, None


def _essentials(spec: Mapping[str, str]) -> dict[str, str]:
    """Fields of a flat spec that are shown, in their order, without nulls."""
    found = {}
    for pattern in _ESSENTIALS:
        for name, value in spec.items():
            if value != "null" and fnmatchcase(name, pattern):
                found[name] = value
    return found


def run_time(content: JournalContent) -> TimeSummary | None:
    """Sum up where the time of a run went, from its journal; None where it holds no times."""
    straggler = JournalFacts.of(content).tags.get(STRAGGLER_TAG, "")
    return time_summary(series_of(content, TIMED), hide(straggler))


def storage_of(spec: Mapping[str, str]) -> str | None:
    """Place outside the run's folder that a flat spec names for checkpoints; None for the folder
    itself.
    """
    storage = spec.get("checkpoint.storage", "null")
    if storage == "null":
        return None
    return storage


def flat_spec(path: Path, notes: list[str]) -> dict[str, str]:
    """Fields of a spec as texts, by dotted path; nothing is validated: a package of the run's may
    not be installed.
    """
    try:
        return flatten(read_recorded(path))
    except OSError as error:
        notes.append(f"{path} cannot be read ({first_line(error)}).")
    except (ValueError, UserError) as error:
        notes.append(str(error))
    return {}


def _checkpoints(
    folder: RunFolder, spec: Mapping[str, str], notes: list[str]
) -> tuple[str, list[int]]:
    """Place and steps of the checkpoints, in the run's folder or its storage; torch is imported for
    a URI alone.
    """
    storage = storage_of(spec)
    place = folder.checkpoints
    if storage:
        place = Path(storage) / folder.run_id
    try:
        if storage and is_uri(storage):
            from ditlab.runs.launch import checkpoint_store

            store = checkpoint_store(folder, storage)
            return store.location, store.steps()
        return str(place), committed(LocalFiles(place, "checkpoint.storage").listing())
    except (OSError, UserError) as error:
        notes.append(f"The checkpoints cannot be listed: {first_line(error).rstrip('.')}.")
        return storage or str(place), []


def _sizes(path: Path) -> dict[str, int]:
    """Bytes of the parts of a run's folder; the total counts all other files as well."""
    sizes = {part: folder_size(path / part) for part in _PARTS if (path / part).is_dir()}
    averages = folder_size(path / "checkpoints" / FOLDER)
    if "checkpoints" in sizes and averages:
        sizes["checkpoints"] -= averages
        sizes["snapshots of averages"] = averages
    sizes["journal"] = sum(folder_size(each) for each in path.glob("journal*.jsonl"))
    return {**sizes, "total": folder_size(path)}
