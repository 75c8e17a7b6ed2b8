"""The append-only journal of a run, which outlives a killed process and a power cut. Imports no mlflow."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ditlab.home import RunFolder
from ditlab.storage.files import ends_torn, sync_folder
from ditlab.tracking.journal.format import Record, line_of, numbers
from ditlab.tracking.journal.index import JournalIndex

_DURABLE = frozenset({"start", "artifact", "table", "dataset", "end"})
"""Kinds that are on the disk when `append` returns."""
_SYNC_SECONDS = 2.0
"""What a power cut may cost of the rest; a killed process costs nothing, as every line goes to the kernel at once."""

_log = logging.getLogger("ditlab.tracking")


def journal_path(folder: RunFolder, node: int = 0) -> Path:
    """The journal of a node; node 0 writes the run's own."""
    return folder.journal if node == 0 else folder.journal.with_name(f"journal.node-{node}.jsonl")


class JournalWriter:
    """Appends to one journal. Safe to use from several threads; one write call per record.

    It drops what it holds already (`Memory`), so a run that goes back to a checkpoint, in this process or in the next,
    repeats the steps since then without logging them twice. Of each metric about `budget` of 10^6 points go on to
    MLflow, all of them for None.
    """

    def __init__(self, folder: RunFolder, node: int = 0, budget: int | None = None) -> None:
        self.folder = folder
        self.path = journal_path(folder, node)
        self._memory = JournalIndex(budget)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._file: int | None = None
        self._synced = 0
        self._needs_newline = False
        self._complained = False
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._memory.read(self.path)
            self._open()
        except OSError as error:
            self._complain(error)
        self._syncer = threading.Thread(target=self._sync_now_and_then, name="ditlab-journal", daemon=True)
        self._syncer.start()

    @property
    def started(self) -> Record | None:
        """The first `start` record, if there was one before this process."""
        return self._memory.started

    @property
    def params(self) -> dict[str, str]:
        """Every parameter logged so far; the first value stays. Its owner adds what it logs."""
        return self._memory.params

    def last_step(self, prefix: str) -> int | None:
        """The last step of any metric whose name begins with `prefix`."""
        with self._lock:
            steps = dict(self._memory.last_steps)
        return max((step for key, step in steps.items() if key.startswith(prefix)), default=None)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record. A disk that refuses it is complained of once and costs no step."""
        with self._lock:
            self._write(line_of(kind, fields))
        if kind in _DURABLE:
            self.sync()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a step, without those that are logged for this step or a later one."""
        with self._lock:
            points = self._memory.points(step, values)
            if not points.values and not points.held:
                return
            fields: dict[str, Any] = {"step": step, "values": numbers(points.values)}
            if points.held:
                fields["held"] = numbers(points.held)
            if self._write(line_of("metrics", fields)):
                self._memory.logged(step, points)

    def image(self, key: str, step: int, path: Path) -> None:
        """Record a picture of a step, unless there is one of this key and step."""
        with self._lock:
            if (key, step) not in self._memory.images and self._write(
                line_of("image", {"key": key, "step": step, "path": self.relative(path)})
            ):
                self._memory.images.add((key, step))

    def holds_image(self, key: str, step: int) -> bool:
        """Whether a picture of this key and step is recorded."""
        with self._lock:
            return (key, step) in self._memory.images

    def relative(self, path: Path) -> str:
        """`path` as records hold it: relative to the run's folder when inside, else absolute."""
        path = path.absolute()
        return str(path.relative_to(self.folder.path)) if path.is_relative_to(self.folder.path) else str(path)

    def sync(self) -> int:
        """Return when every record so far is on the disk; how many bytes of the journal are.

        Raises nothing: a disk that refuses is complained of once, and the bytes stay those of the last success.
        """
        try:
            with self._lock:
                size = os.fstat(self._file).st_size if self._file is not None else 0
                if self._file is None or size <= self._synced:
                    return self._synced
                descriptor = os.dup(self._file)  # an fsync may take long: appends go on meanwhile
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._complain(error)
            return self._synced
        with self._lock:
            self._synced = max(size, self._synced)
            return self._synced

    def close(self) -> None:
        """Flush to the disk and close; closing twice is allowed."""
        if self._closed.is_set():
            return
        self.sync()
        with self._lock:
            self._closed.set()
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self._syncer.join()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # A torn last line of an earlier process is cut off from ours by a newline, and passed over by readers.
        self._needs_newline = ends_torn(self._file)
        if os.fstat(self._file).st_size == 0:
            sync_folder(self.path.parent)

    def _write(self, line: bytes) -> bool:
        """Whether the whole line is in the file."""
        if self._closed.is_set():
            raise ValueError(f"{self.path} is closed")
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            if self._needs_newline:
                line = b"\n" + line
            written = os.write(self._file, line)
            if written == len(line):
                self._needs_newline = False
                return True
            self._tear_off(self._file, line, written)
        except OSError as error:
            self._complain(error)
        return False

    def _tear_off(self, file: int, line: bytes, written: int) -> None:
        """A full disk took the beginning of a line: take it back, or let the next line begin on its own."""
        size = os.fstat(file).st_size
        if os.pread(file, written, size - written) == line[:written]:
            os.ftruncate(file, size - written)
        else:
            self._needs_newline = True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning(
                "%s cannot be written (%s): metrics are being lost, training goes on", self.path, error.strerror
            )

    def _sync_now_and_then(self) -> None:
        while not self._closed.wait(_SYNC_SECONDS):
            self.sync()
