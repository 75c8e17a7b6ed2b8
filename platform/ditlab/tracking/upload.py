"""Upload of journals to MLflow from their saved cursors on: now, for many runs, or in a thread
beside the training.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from ditlab.errors import first_line
from ditlab.home import Home, RunFolder
from ditlab.storage.files import sync_file, take_lock, write_durably
from ditlab.tracking.access import (
    is_mlflow,
    redact,
    refusal_message,
    sqlite_path,
)
from ditlab.tracking.backend import (
    Destination,
    NotReadyError,
    RunGoneError,
    TrackingBackend,
    Warn,
    backend_for,
)
from ditlab.tracking.journal import (
    LONGEST_LINE,
    JournalRecord,
    count_lines,
    damaged_lines,
    read_lines,
)
from ditlab.tracking.mlflow_connection import denial, holds_run, outage_reason
from ditlab.tracking.system_metrics import LONGEST_HELD

BATCHED_KINDS = frozenset({"metrics", "overview", "params", "tags"})
"""Kinds of records that a backend may send together."""
_FILE_KINDS = frozenset({"artifact", "image", "table", "model"})
"""Kinds whose failure does not delay the rest: the artifact store may be another machine than the
server.
"""
_POLL_INTERVAL = 1.0  # seconds
_LONGEST_BACKOFF = 60.0  # seconds
_log = logging.getLogger("ditlab.tracking")


@dataclass
class Cursor:
    """The part of one journal that one tracking address has received."""

    offset: NonNegativeInt = 0
    """Bytes of the journal that are done."""
    head: str = ""
    """Digest of the journal's first line, which tells journals apart. Empty before anything is
    done.
    """
    mlflow_run_id: str | None = None
    deferred: list[NonNegativeInt] = field(default_factory=list)
    """Offsets of files whose upload failed while the rest went through, and of a note that was not
    sent yet.
    """


_CURSORS = TypeAdapter(dict[str, Cursor])


class CursorFile:
    """Cursors of one journal by tracking address, durable; and the lock that lets one process send
    at a time.
    """

    def __init__(self, folder: RunFolder, uri: str, node: int = 0) -> None:
        self._key = redact(uri)
        self._database = sqlite_path(uri) if uri.startswith("sqlite:") else None
        self._journal = folder.node_journal(node)
        self._path = self._journal.with_suffix(".cursor.json")
        self.lock: IO[bytes] | None = None
        """The held lock; None while this process does not hold it."""

    def load(self) -> Cursor:
        """The saved cursor; the beginning for an unreadable one, and for a database or journal that
        was made again.
        """
        cursor = self._read().get(self._key, Cursor())
        run_id = cursor.mlflow_run_id
        if self._database and run_id and not holds_run(self._database, run_id):
            return Cursor()
        if cursor.offset:
            size = 0
            if self._journal.exists():
                size = self._journal.stat().st_size
            if cursor.offset > size or cursor.head not in ("", self._head()):
                return Cursor(mlflow_run_id=run_id)
        return cursor

    def save(self, cursor: Cursor) -> None:
        """Save a cursor; it is on the disk when this returns."""
        cursor.head = self._head()
        write_durably(self._path, _CURSORS.dump_json({**self._read(), self._key: cursor}, indent=1))

    def acquire(self) -> bool:
        """Take the lock; returns False while another process holds it."""
        if self.lock is None:
            lock = Path(f"{self._path}.lock").open("ab")  # noqa: SIM115
            if not take_lock(lock):
                lock.close()
                return False
            self.lock = lock
        return True

    def release(self) -> None:
        """Release the lock, if this process holds it."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def _head(self) -> str:
        try:
            with self._journal.open("rb") as file:
                line = file.readline(LONGEST_LINE)
        except OSError:
            return ""
        if line.endswith(b"\n"):
            return hashlib.sha256(line).hexdigest()[:16]
        return ""

    def _read(self) -> dict[str, Cursor]:
        """The cursors by address; {} where they cannot be read."""
        try:
            return _CURSORS.validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return {}


class JournalTransfer:
    """Transfer of one node's journal. Not thread-safe: one thread calls `send_pending`."""

    def __init__(
        self,
        folder: RunFolder,
        uri: str,
        home: Home,
        warn: Warn,
        node: int = 0,
        sync: Callable[[], int] | None = None,
    ) -> None:
        """`sync` flushes the journal to the disk and returns how many bytes are there; None: no
        writer here.
        """
        self.to = Destination(uri, home, folder, warn, node)
        self.path = folder.node_journal(node)
        self._sync = sync or (lambda: sync_file(self.path))
        self.cursor_file = CursorFile(folder, uri, node)
        self.cursor = self.cursor_file.load()
        self._backend: TrackingBackend | None = None
        self._parent: str | None = None
        self._has_warned_of_files = False

    def num_left(self) -> int:
        """Number of records that have not arrived."""
        cursor = self.cursor_file.load()
        return count_lines(self.path, cursor.offset) + len(cursor.deferred)

    def send_pending(self, until: float = math.inf, retry_files: bool = False) -> None:
        """Send the records after the cursor, up to the monotonic time `until`; none while another
        process sends them.

        Raises what MLflow raises when it does not answer, RunGoneError, and NotReadyError.
        """
        if self.cursor_file.lock is None:
            if not self.cursor_file.acquire():
                return
            # another process may have sent since this one began
            self.cursor = self.cursor_file.load()
        has_pending = self.path.exists() and self.path.stat().st_size > self.cursor.offset
        if not has_pending and not (retry_files and self.cursor.deferred):
            return
        durable = self._sync()
        backend = self._backend = self._backend or self._connect()
        try:
            if self._parent is not None and backend.nest(self._parent):
                self._parent = None
            self._send_records(backend, until, durable)
        except Exception as error:
            if backend.is_missing(error):
                # the store may have been made again: look again at the next attempt
                self._backend = None
            raise
        if not retry_files:
            return
        for offset in list(self.cursor.deferred):
            self._send_deferred(backend, offset)
            if time.monotonic() > until:
                return

    def close(self) -> None:
        """Release the lock, so that another process may send the journal."""
        self.cursor_file.release()

    def _connect(self) -> TrackingBackend:
        """Find or make the run at the backend, and save its id before anything is sent to it."""
        records = (line.record for line in read_lines(self.path, 0) if line.record)
        start = next((record for record in records if record["kind"] == "start"), None)
        if start is None and self.to.node == 0:
            raise NotReadyError(f"{self.path} does not say yet which run it belongs to")
        known = self.cursor.mlflow_run_id
        backend = backend_for(self.to.uri).connect(self.to, start, known)
        if backend.run_id != known:
            if known is not None:
                # it has lost the run: everything is sent again, from the beginning
                self.cursor = Cursor()
            self.cursor.mlflow_run_id = backend.run_id
            self.cursor_file.save(self.cursor)
        self._parent = None
        if start and self.to.node == 0:
            self._parent = start.get("parent")
        return backend

    def _send_records(self, backend: TrackingBackend, until: float, durable: int) -> None:
        end = self.cursor.offset
        num_damaged = 0
        note = None
        for line in read_lines(self.path, self.cursor.offset):
            if line.end > durable:
                break
            end = line.end
            record = line.record
            if record is None:
                num_damaged += 1
                backend.flush()
            elif record["kind"] == "note":  # all show the newest text, which is sent once
                waiting = [offset for offset in self.cursor.deferred if offset != note]
                note = line.begin
                self.cursor.deferred = [*waiting, note]
                continue
            elif record["kind"] in BATCHED_KINDS:
                if not backend.add(record, end - line.begin):
                    continue
                backend.flush()
            else:
                backend.flush()
                if not self._send_one(backend, record):
                    self.cursor.deferred.append(line.begin)
            self._advance(end)
            if time.monotonic() > until:
                break
        if end > self.cursor.offset:
            backend.flush()
            self._advance(end)
        if note is not None:
            self._send_deferred(backend, note)
        if num_damaged:
            self.to.warn(f"{self.path}: {damaged_lines(num_damaged)}")

    def _advance(self, offset: int) -> None:
        """Note, durably, that the journal has arrived up to an offset."""
        self.cursor.offset = offset
        self.cursor_file.save(self.cursor)

    def _send_deferred(self, backend: TrackingBackend, offset: int) -> None:
        """Send a record that waits, and forget it once it arrived or is gone."""
        record = next((line.record for line in read_lines(self.path, offset)), None)
        if record is None or self._send_one(backend, record):
            self.cursor.deferred.remove(offset)
            self.cursor_file.save(self.cursor)

    def _send_one(self, backend: TrackingBackend, record: JournalRecord) -> bool:
        """Send a record; returns False, with a warning once a process, for a file that is not taken
        now.
        """
        try:
            backend.send(record)
        except RunGoneError:
            raise
        except Exception as error:
            if record["kind"] not in _FILE_KINDS:
                raise
            if not self._has_warned_of_files:
                self._has_warned_of_files = True
                what = f"{record['path']} ({first_line(error)})"
                self.to.warn(f"MLflow's artifact store takes no {what}; files wait, metrics go on")
            return False
        return True


class BackgroundUploader:
    """A thread that sends a journal as it grows; MLflow's errors and delays affect neither caller
    nor journal.
    """

    def __init__(self, transfer: JournalTransfer, begin: threading.Event) -> None:
        """Begin to send once `begin` is set."""
        self._transfer = transfer
        self._stop = threading.Event()
        self._begin = begin
        self._thread = threading.Thread(target=self._run, name="ditlab-uploader", daemon=True)
        self._until = math.inf
        self._backoff = _POLL_INTERVAL
        self._is_outage = False
        self._thread.start()

    def close(self, timeout: float) -> int:
        """Send what is left for up to `timeout` seconds; returns how many records have not
        arrived.
        """
        self._until = time.monotonic() + timeout
        self._stop.set()
        self._begin.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self._transfer.num_left()

    def _run(self) -> None:
        self._begin.wait(LONGEST_HELD)
        self._last_retry = time.monotonic()
        try:
            while True:
                is_closing = self._stop.is_set()
                if self._attempt(is_closing):
                    return
                if is_closing:
                    time.sleep(0.1)
                else:
                    self._stop.wait(self._backoff)
        finally:
            self._transfer.close()

    def _attempt(self, is_closing: bool) -> bool:
        """Send what is there; returns True once nothing more can be sent. No error may reach the
        training.
        """
        transfer = self._transfer
        retry = is_closing or time.monotonic() - self._last_retry > _LONGEST_BACKOFF
        try:
            transfer.send_pending(self._until, retry_files=retry)
            if retry:
                self._last_retry = time.monotonic()
            self._backoff = _POLL_INTERVAL
            self._is_outage = False
            # Deferred files do not count: they were tried again and failed.
            return is_closing and (
                time.monotonic() > self._until
                or not count_lines(transfer.path, transfer.cursor_file.load().offset)
            )
        except NotReadyError:
            # The journal is closed by now: a start record that node 0 misses in it will not come
            # any more.
            return is_closing and (time.monotonic() > self._until or transfer.to.node == 0)
        except RunGoneError as error:
            transfer.to.warn(f"{error}; everything stays in {transfer.path}")
            return True
        except Exception as error:  # the next attempt may succeed
            if not self._is_outage:  # one warning for each
                uri = redact(transfer.to.uri)
                refusal = refusal_message(uri, *denial(error))
                place = uri
                if is_mlflow(uri):
                    place = f"MLflow at {uri}"
                sentence = refusal or f"{place} takes nothing ({outage_reason(error)})"
                transfer.to.warn(f"{sentence}; training goes on, metrics wait in {transfer.path}")
            self._is_outage = True
            self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)
            return is_closing


def num_unsent(folder: RunFolder, address: str, home: Home) -> int:
    """Number of a run's records that an address has not received. Contacts nothing."""
    return sum(
        JournalTransfer(folder, address, home, _log.debug, node).num_left()
        for node in folder.journal_nodes()
    )
