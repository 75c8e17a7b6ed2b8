"""Events of a run in the order of its journal: starts, evaluations, checkpoints, failures, ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from ditlab.checkpoints.manifest import MANIFEST, is_step, step_of
from ditlab.home import RunFolder
from ditlab.runs.locks import is_locked
from ditlab.spec.values import format_bytes
from ditlab.storage.files import folder_size
from ditlab.tracking.journal import (
    RESULT_PREFIXES,
    JournalContent,
    JournalRecord,
    all_metrics,
    current_time,
    read_lines,
)
from ditlab.tracking.names import change_texts

_MOST_VALUES = 3
"""Metrics of an evaluation that are named."""
_FAULT_TAGS = (
    "ditlab.failure",
    "ditlab.error",
    "ditlab.failure_message",
    "ditlab.checkpoint_error",
)
_RECOVERED_TAGS = ("ditlab.skipped_steps", "ditlab.left_out_steps", "ditlab.out_of_memory")
"""Tags of failures after which the same process went on."""
_SHOWN_TAGS = (
    "ditlab.exploits",
    "ditlab.nodes",
    "ditlab.straggler",
    "ditlab.best_run",
    "ditlab.asked",
    "ditlab.early_stop",
    "ditlab.evaluations_skipped",
    "ditlab.evaluation_error",
)


@dataclass(frozen=True)
class RunEvent:
    """One event of a run."""

    time: int
    """Milliseconds since 1970."""
    kind: str
    """start, data, evaluation, checkpoint, failure, recovery, state, files, end, or one of an
    observer's own.
    """
    text: str

    def to_dict(self) -> dict[str, Any]:
        """The event in JSON's types, for `--json`."""
        moment = datetime.fromtimestamp(self.time / 1000, UTC).isoformat(timespec="milliseconds")
        return {"time": moment, "kind": self.kind, "text": self.text}


def add_event(folder: RunFolder, kind: str, text: str) -> None:
    """Add an event to those of a run's journal. Raises OSError as the disk does."""
    event = RunEvent(current_time(), kind, text)
    with folder.added_events.open("ab") as file:
        file.write(json.dumps(asdict(event)).encode() + b"\n")


class EventReader:
    """Reader of one run's events; `read_new` goes on where the last call ended."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.num_damaged = 0
        """Damaged lines of the journal, which were skipped."""
        self._end = 0
        self._end_of_added = 0
        self._num_starts = 0

    def read_all(self) -> list[RunEvent]:
        """Every event so far, and the checkpoints that are kept, by time. Raises OSError where the
        journal cannot be read."""
        events = [*self.read_new(), *_checkpoints(self.folder.checkpoints)]
        return sorted(events, key=lambda event: event.time)

    def events_in(self, content: JournalContent) -> list[RunEvent]:
        """Every event of a journal that was read already, and the checkpoints that are kept, by
        time.
        """
        events = [*_joined(filter(None, map(self._event, content.events))), *self._added()]
        return sorted(
            [*events, *_checkpoints(self.folder.checkpoints)], key=lambda event: event.time
        )

    def read_new(self) -> list[RunEvent]:
        """Events of the journal's lines since the last call, in their order."""
        found = []
        with suppress(FileNotFoundError):
            for line in read_lines(self.folder.journal, self._end):
                self._end = line.end
                self.num_damaged += line.record is None
                if line.record is None:
                    continue
                event = self._event(line.record)
                if event:
                    found.append(event)
        return [*_joined(found), *self._added()]

    def follow(self, interval: float = 1.0) -> Iterator[RunEvent]:
        """Yield new events as they come, until the run has ended and no process trains it."""
        while True:
            is_over = not is_locked(self.folder)
            yield from self.read_new()
            if is_over:
                return
            time.sleep(interval)

    def _added(self) -> list[RunEvent]:
        """Events that observers have added since the last call; a damaged line is skipped."""
        found = []
        with suppress(OSError), self.folder.added_events.open("rb") as file:
            file.seek(self._end_of_added)
            for line in file:
                self._end_of_added += len(line)
                with suppress(ValueError, TypeError, KeyError):
                    fields = json.loads(line)
                    found.append(
                        RunEvent(int(fields["time"]), str(fields["kind"]), str(fields["text"]))
                    )
        return found

    def _event(self, record: JournalRecord) -> RunEvent | None:
        """The event of a record; None where people need not see the record."""
        kind = record["kind"]
        text = ""
        match kind:
            case "start":
                self._num_starts += 1
                begun = "started"
                if self._num_starts > 1:
                    begun = f"started again ({self._num_starts - 1})"
                text = f"{begun}: {record['name']}, MLflow experiment {record['experiment']}"
            case "dataset":
                counts = ", ".join(
                    f"{number:,} {name.replace('_', ' ')}"
                    for name, number in record["counts"].items()
                )
                kind = "data"
                text = f"data: {record['name']} ({counts})"
            case "metrics":
                kind = "evaluation"
                text = _evaluation_text(record)
            case "resume":
                texts = [*change_texts(record["changes"]), *filter(None, [record["rates"]])]
                kind = "start"
                text = f"resumed after step {record['step']:,} with {'; '.join(texts)}"
            case "tags":
                kind, text = _tags(record["values"])
            case "artifact" | "table" if record["artifact_path"]:
                kind = "files"
                text = f"logged {record['artifact_path']}"
            case "model":
                kind = "files"
                text = f"logged the weights of step {record['step']:,} as a model"
            case "end":
                text = f"ended: {record['status']}"
        if text:
            return RunEvent(record["time"], kind, text)
        return None


def _evaluation_text(record: JournalRecord) -> str:
    """Step and first results of a `metrics` record; empty where it holds no results."""
    results = [
        f"{name} {value:.5g}"
        for name, value in all_metrics(record)
        if name.startswith(RESULT_PREFIXES)
    ]
    if not results:
        return ""
    text = f"evaluated at step {record['step']:,}: {', '.join(results[:_MOST_VALUES])}"
    if len(results) > _MOST_VALUES:
        text += f" and {len(results) - _MOST_VALUES} more"
    return text


def _tags(values: Mapping[str, str]) -> tuple[str, str]:
    """Kind and text of the tags that people are told of; two empty texts where none is."""

    def named(tags: Iterable[str]) -> str:
        return "; ".join(
            f"{tag.removeprefix('ditlab.').replace('_', ' ')}: {values[tag]}" for tag in tags
        )

    recovered = [name for name in _RECOVERED_TAGS if name in values]
    if recovered:
        return "recovery", named(recovered).partition("\n")[0]
    faults = [values[name] for name in _FAULT_TAGS if values.get(name)]
    if faults:
        return "failure", f"failed: {': '.join(faults)}".partition("\n")[0]
    shown = [name for name in _SHOWN_TAGS if values.get(name)]
    if shown:
        return "state", named(shown)
    return "", ""


def _joined(events: Iterable[RunEvent]) -> Iterator[RunEvent]:
    """Join neighbours that log files to one event: `logged figures (9 files)`."""
    for (kind, text), alike in groupby(events, key=lambda event: (event.kind, event.text)):
        found = list(alike)
        if kind == "files" and len(found) > 1:
            found = [replace(found[0], text=f"{text} ({len(found)} files)")]
        yield from found


def _checkpoints(folder: Path) -> list[RunEvent]:
    """Checkpoints that are in a run's folder now, by the time of their manifests."""
    events = []
    for place in sorted(folder.glob("*")):
        with suppress(OSError):  # not committed, or pruned meanwhile
            if is_step(place.name) and not place.is_symlink():
                written = (place / MANIFEST).lstat().st_mtime
                text = (
                    f"checkpoint of step {step_of(place.name):,} "
                    f"({format_bytes(folder_size(place))})"
                )
                events.append(RunEvent(int(written * 1000), "checkpoint", text))
    return events
