"""Position up to which a journal has been sent, and the lock that lets one process send it. Imports no mlflow.

Cursors are kept by MLflow address.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from ditlab.home import RunFolder
from ditlab.storage.files import add_checksum, parse_json_line, write_durably
from ditlab.storage.plain_files import MIB, open_for_append, open_regular_file, read_plain
from ditlab.tracking.access import redact, sqlite_path
from ditlab.tracking.journal import LONGEST_LINE
from ditlab.tracking.local_database import holds_run


@dataclass
class Cursor:
    """The part of one journal that one tracking address has received."""

    offset: NonNegativeInt = 0
    """Bytes of the journal that are done."""
    head: str = ""
    """Digest of the journal's first line, which tells journals apart. Empty before anything is done."""
    mlflow_run_id: str | None = None
    deferred: list[NonNegativeInt] = field(default_factory=list)
    """Offsets of files whose upload failed while the rest went through."""


_SAVED = TypeAdapter(Cursor)


class CursorFile:
    """Cursors of one journal by tracking address, durable; and the lock that lets one process send at a time."""

    def __init__(self, folder: RunFolder, uri: str, node: int = 0) -> None:
        self._key = redact(uri)
        self._database = sqlite_path(uri) if uri.startswith("sqlite:") else None
        self._journal = folder.node_journal(node)
        self._path = self._journal.with_suffix(".cursor.json")
        self._lock: int | None = None

    def load(self) -> Cursor:
        """The saved cursor; the beginning where none can be read, or a local database is gone or lacks the run.

        Sending twice does no harm. A journal that was made again, shorter or longer than the old one, is sent from its
        beginning as well, to the same MLflow run.
        """
        try:
            cursor = _SAVED.validate_python(self._read().get(self._key, {}))
        except ValidationError:
            return Cursor()
        if self._database and cursor.mlflow_run_id and not holds_run(self._database, cursor.mlflow_run_id):
            return Cursor()
        if cursor.offset:
            size = self._journal.stat().st_size if self._journal.exists() else 0
            if cursor.offset > size or cursor.head not in ("", self._head()):
                return Cursor(mlflow_run_id=cursor.mlflow_run_id)
        return cursor

    def save(self, cursor: Cursor) -> None:
        """Save a cursor; it is on the disk when this returns."""
        cursor.head = self._head()
        targets = {**self._read(), self._key: asdict(cursor)}
        write_durably(self._path, add_checksum(json.dumps(targets, indent=1).encode()))

    @property
    def is_mine(self) -> bool:
        """True if this process holds the lock."""
        return self._lock is not None

    def acquire(self) -> bool:
        """Take the lock; returns False while another process holds it."""
        if self._lock is None:
            descriptor = open_for_append(Path(f"{self._path}.lock"))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def release(self) -> None:
        """Release the lock, if this process holds it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _head(self) -> str:
        try:
            with open_regular_file(self._journal) as file:
                line = file.readline(LONGEST_LINE)
        except OSError:
            return ""
        return hashlib.sha256(line).hexdigest()[:16] if line.endswith(b"\n") else ""

    def _read(self) -> dict[str, Any]:
        """The cursors by address; {} where they cannot be read, or their checksum is wrong."""
        try:
            return parse_json_line(read_plain(self._path, MIB)) or {}
        except OSError:
            return {}
