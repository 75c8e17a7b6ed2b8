"""Results of steps in a home, by what they were made of: `DITLAB_HOME/steps/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from ditlab.home import Home
from ditlab.storage.files import take_lock, write_durably

FORMAT = 1
STEP_VARIABLE = "DITLAB_STEP"
"""Variable that tells a command which step it makes: `study/grown, needs base`."""


@dataclass(frozen=True)
class Made:
    """Result of a step's command."""

    digest: str
    """Hash of what steps that need it depend on: of a store, of weights, of measured values."""
    run: str = ""
    """Id of the run, of a sweep's best trial."""
    step: int = 0
    """Step of the run's last checkpoint."""
    members: tuple[str, ...] = ()
    """Ids of the runs of a group of seeds."""
    place: str = ""
    """Folder of a store, id of a run or a sweep, first of several files."""
    files: Mapping[str, list[int]] = field(default_factory=dict)
    """Size and time of each file."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values of a sweep's best trial by path."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)


def identity_of(content: Mapping[str, Any]) -> str:
    """Return 16 hex digits over what decides a result."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class Ledger:
    """Results of a home by identity, and what each step of a graph was made of last."""

    def __init__(self, home: Home) -> None:
        self.folder = home.root / "steps"

    def find(self, identity: str) -> Made | None:
        """Return the result of an identity; None where there is none."""
        content = self._read(self.folder / f"{identity}.json")
        if not content:
            return None
        made = content["made"]
        return Made(**made | {"members": tuple(made["members"])})

    def add(self, identity: str, made: Made) -> None:
        """Keep a result."""
        self._write(self.folder / f"{identity}.json", {"made": asdict(made)})

    def last_contents(self, graph: str, step: str) -> list[dict[str, Any]]:
        """Return what each result of a step of a graph was made of last; [] where it never was."""
        return list(self._read(self._note(graph, step)).get("contents", []))

    def note_contents(self, graph: str, step: str, contents: list[Mapping[str, Any]]) -> None:
        """Keep what each result of a step of a graph is made of."""
        self._write(self._note(graph, step), {"contents": contents})

    @contextmanager
    def locked(self, identity: str) -> Iterator[IO[bytes] | None]:
        """Hold the lock of an identity inside; None where another process makes it.

        A child process that is given the file holds the lock as well, also when this one is killed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{identity}.lock").open("ab") as file:
            yield file if take_lock(file) else None

    def is_made_now(self, identity: str) -> bool:
        """Return True while a process makes an identity."""
        with self.locked(identity) as lock:
            return lock is None

    def write_states(self, graph: str, steps: Sequence[Mapping[str, Any]]) -> None:
        """Keep the states of a graph's steps."""
        self._write(self.pages(graph) / "graph.json", {"steps": steps})

    def states(self, graph: str) -> list[dict[str, Any]]:
        """Return the states of a graph's steps, as they were written last; [] for none."""
        return list(self._read(self.pages(graph) / "graph.json").get("steps", []))

    def pages(self, graph: str) -> Path:
        """Return the folder of a graph's page."""
        return self.folder / "graphs" / graph

    def _note(self, graph: str, step: str) -> Path:
        return self.pages(graph) / "steps" / f"{step}.json"

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        """Return a record; {} for one that is not there, or of another format: it is made again."""
        with suppress(OSError, ValueError):
            found = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(found, dict) and found.get("format") == FORMAT:
                return found
        return {}

    @staticmethod
    def _write(path: Path, content: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, json.dumps({"format": FORMAT, **content}).encode())
