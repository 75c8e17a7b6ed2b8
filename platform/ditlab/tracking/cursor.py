"""How far a journal has been sent, and who may send it. Imports no mlflow."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ditlab.home import RunFolder
from ditlab.tracking.address import redact
from ditlab.tracking.journal import journal_path
from ditlab.tracking.records import write_atomically


@dataclass
class Cursor:
    """What one tracking address has received of one journal."""

    offset: int = 0
    """Bytes of the journal that are done."""
    mlflow_run_id: str | None = None
    deferred: list[int] = field(default_factory=list)
    """Offsets of files whose upload failed while the rest went through."""


class CursorFile:
    """Cursors of one journal by tracking address, durable; and the lock that lets one process send at a time."""

    def __init__(self, folder: RunFolder, uri: str, node: int = 0) -> None:
        self._folder = folder
        self._key = redact(uri)
        self._path = journal_path(folder, node).with_suffix(".cursor.json")
        self._lock: int | None = None

    def load(self) -> Cursor:
        """The saved cursor; the beginning, where none was saved or it cannot be read (replays do no harm)."""
        try:
            return Cursor(**self._read().get(self._key, {}))
        except TypeError:
            return Cursor()

    def save(self, cursor: Cursor) -> None:
        """Durable when this returns."""
        targets = {**self._read(), self._key: asdict(cursor)}
        write_atomically(self._folder, self._path.name, json.dumps(targets, indent=1))

    def acquire(self) -> bool:
        """Become the one who sends this journal; False while another process is."""
        if self._lock is not None:
            return True
        descriptor = os.open(Path(f"{self._path}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> dict[str, dict]:
        try:
            targets = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return targets if isinstance(targets, dict) else {}
