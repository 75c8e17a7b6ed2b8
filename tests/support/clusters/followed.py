"""A run's journal read as it grows, for tests that wait for moments of a run on other nodes."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.clusters.faults import journal_path


@dataclass(frozen=True)
class Group:
    """Workers that carried the run for a while."""

    time: float
    """Start times, seconds since 1970."""
    workers: int
    nodes: tuple[str, ...]
    """Beginnings of Ray's node ids, that of the first worker first."""


@dataclass(frozen=True)
class Loss:
    """One record of the journal."""

    step: int
    value: float
    time: float


@dataclass
class Followed:
    """State of the run of a name, as its journal holds it; call `look` to refresh."""

    home: Path
    name: str
    node: int = 0
    """Whose journal; those of the others hold their machines' load."""
    number: int = -1
    """Number of a sweep's trial."""
    step: int = 0
    """Step of the last loss."""
    evaluated: int = -1
    """Step of the last evaluation."""
    groups: list[Group] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    sampled: float = 0.0
    """Time of the machine's last load."""
    _read: int = 0

    def look(self) -> "Followed":
        path = journal_path(self.home, self.name)
        if path and self.node:
            path = path.with_name(f"journal.node-{self.node}.jsonl")
        if path is None or not path.exists():
            return self
        with path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            if line.strip():
                self._take(json.loads(line))
        return self

    def _take(self, record: dict[str, Any]) -> None:
        values, time = record.get("values", {}), record["time"] / 1000
        if record["kind"] == "tags" and "ditlab.workers" in values:
            nodes = tuple(name.rpartition("/")[2] for name in values["ditlab.nodes"].split(", "))
            self.groups.append(Group(time, int(values["ditlab.workers"]), nodes))
        elif record["kind"] == "tags" and "ditlab.failure" in values:
            self.failures.append(values["ditlab.failure"])
        elif record["kind"] == "metrics":
            if "train/loss" in values:
                self.step = record["step"]
                self.losses.append(Loss(record["step"], values["train/loss"], time))
            if any(name.startswith("system/") for name in values):
                self.sampled = time
            if any(name.startswith("eval/") for name in values):
                self.evaluated = record["step"]
