"""Appending to a run's journal, which outlives a killed process and a power cut."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ditlab.home import RunFolder
from ditlab.storage.files import ends_torn, sync_folder
from ditlab.storage.plain_files import MIB, open_for_append
from ditlab.tracking.journal.facts import JournalFacts
from ditlab.tracking.journal.format import current_time, encode_record, encode_values
from ditlab.tracking.journal.index import JournalIndex
from ditlab.tracking.journal.results import RunResults
from ditlab.tracking.journal.side_index import MIN_GROWTH, damaged_lines, read_content

_DURABLE = frozenset({"start", "artifact", "table", "dataset", "model", "end"})
"""Kinds that are on the disk when `append` returns."""
_SYNC_INTERVAL = 2.0
"""Seconds of other records that a power cut may cost; a killed process costs nothing, as every line goes to the kernel
at once."""

_INDEX_INTERVAL = 32 * MIB
"""Bytes of the journal between two updates of its side index: a second of one core each, about every 100,000 steps."""

_log = logging.getLogger("ditlab.tracking")


class JournalWriter:
    """Writer of one node's journal. Safe to use from several threads; one write call per record.

    Records that the journal holds already (`JournalIndex`) are dropped, so a run that goes back to a checkpoint, in
    this process or in the next, repeats the steps since then without logging them twice. Of each metric about `budget`
    of 10^6 points go on to MLflow, or all of them where `budget` is None. `warn` gets a line on damage, and on a disk
    that refuses; None: it is logged.
    """

    def __init__(
        self,
        folder: RunFolder,
        node: int = 0,
        budget: int | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = folder
        self._warn = warn or _log.warning
        self.path = folder.node_journal(node)
        self._index = JournalIndex(budget)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._file: int | None = None
        self._synced = self._indexed = 0
        self._needs_newline = False
        self._has_warned = False
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                content = read_content(self.path)
                self._index.load(content)
                self._indexed = content.end
                if content.num_damaged:
                    self._warn(f"{self.path}: {damaged_lines(content.num_damaged)}")
            self._open()
        except OSError as error:
            self._warn_once(error)
        self._syncer = threading.Thread(target=self._sync_periodically, name="ditlab-journal", daemon=True)
        self._syncer.start()

    @property
    def facts(self) -> JournalFacts:
        """Facts of the records that hold no metrics."""
        return self._index.facts

    @property
    def results(self) -> RunResults:
        """Results of the evaluations so far."""
        return self._index.results

    def last_step(self, prefix: str) -> int | None:
        """The last step of any metric whose name begins with `prefix`."""
        with self._lock:
            steps = dict(self._index.last_steps)
        return max((step for key, step in steps.items() if key.startswith(prefix)), default=None)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record. Where the disk refuses it, the first refusal is logged as a warning, and none raises."""
        with self._lock:
            if self._write(encode_record(kind, fields)):
                self._index.facts.add({"kind": kind, **fields})
        if kind in _DURABLE:
            self.sync()

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a step, `train/loss` and the like, without those logged for this step or a later one.

        So a run that went back to a checkpoint logs nothing twice, and of two values for one step (`ditlab evaluate`
        run again) the first one stays.
        """
        with self._lock:
            points = self._index.select(step, values)
            if not points.values and not points.held:
                return
            now = current_time()
            fields: dict[str, Any] = {"time": now, "step": step, "values": encode_values(points.values)}
            if points.held:
                fields["held"] = encode_values(points.held)
            if self._write(encode_record("metrics", fields)):
                self._index.mark_logged(step, points, now)

    def log_overview(self, step: int, values: Mapping[str, float]) -> None:
        """Record figures for MLflow's list of runs, without those logged for this step or a later one."""
        steps = self._index.facts.overview_steps
        new = {key: value for key, value in values.items() if steps.get(key, -1) < step}
        if new:
            self.append("overview", step=step, values=encode_values(new))

    def log_image(self, key: str, step: int, path: Path) -> None:
        """Record an image file of a step, unless the journal holds one of this key and step."""
        with self._lock:
            if (key, step) not in self._index.images and self._write(
                encode_record("image", {"key": key, "step": step, "path": self.relative_path(path)})
            ):
                self._index.images.add((key, step))
                self._index.facts.add({"kind": "image", "key": key, "step": step})

    def has_image(self, key: str, step: int) -> bool:
        """Return True if an image of this key and step is recorded."""
        with self._lock:
            return (key, step) in self._index.images

    def relative_path(self, path: Path) -> str:
        """A path as records hold it: relative to the run's folder when inside, else absolute."""
        path = path.absolute()
        return str(path.relative_to(self.folder.path)) if path.is_relative_to(self.folder.path) else str(path)

    def sync(self) -> int:
        """Flush every record so far to the disk; returns how many bytes of the journal are there.

        Raises nothing: the first refusal of the disk is logged as a warning, and the bytes stay those of the last
        success.
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
            self._warn_once(error)
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
        self._update_side_index(MIN_GROWTH)

    def _open(self) -> None:
        self._file = open_for_append(self.path)
        # A newline separates a torn last line of an earlier process from ours, and readers pass it over.
        self._needs_newline = ends_torn(self._file)
        if os.fstat(self._file).st_size == 0:
            sync_folder(self.path.parent)

    def _write(self, line: bytes) -> bool:
        """Write a line; returns True if the whole line is in the file."""
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
            self._undo_partial_write(self._file, line, written)
        except OSError as error:
            self._warn_once(error)
        return False

    def _undo_partial_write(self, file: int, line: bytes, written: int) -> None:
        """Cut off the beginning of a line that filled the disk, or start the next with a newline; raises OSError."""
        size = os.fstat(file).st_size
        if os.pread(file, written, size - written) == line[:written]:
            os.ftruncate(file, size - written)
        else:
            self._needs_newline = True
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _warn_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(f"{self.path} cannot be written ({error.strerror}): metrics are being lost, training goes on")

    def _sync_periodically(self) -> None:
        while not self._closed.wait(_SYNC_INTERVAL):
            self.sync()
            self._update_side_index(_INDEX_INTERVAL)

    def _update_side_index(self, min_growth: int) -> None:
        """Index what has been written since the last time, if it is much: the next process need not parse it."""
        with suppress(OSError):
            if self.path.stat().st_size - self._indexed >= min_growth:
                self._indexed = read_content(self.path).end
