"""Upload of a journal to MLflow from its saved cursor on, now or in a thread beside the training."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import datetime

from ditlab.errors import UserError, first_line
from ditlab.home import Home, RunFolder
from ditlab.spec.files import build_experiment, load_recorded_experiment
from ditlab.spec.sweep import load_sweep
from ditlab.storage.files import sync_file
from ditlab.storage.plain_files import open_regular_file
from ditlab.tracking.access import outage_reason, redact, refusal_message
from ditlab.tracking.backend import Destination, NotReadyError, RunGoneError, TrackingBackend, Warn, backend_for
from ditlab.tracking.cursor import Cursor, CursorFile
from ditlab.tracking.journal import (
    LARGEST_JOURNAL,
    JournalRecord,
    count_lines,
    damaged_lines,
    read_journal,
    read_lines,
    read_record_at,
)
from ditlab.tracking.mlflow_connection import denial_status
from ditlab.tracking.records import UnreadableRecord, read_run_record
from ditlab.tracking.system_metrics import LONGEST_HELD

BATCHED_KINDS = frozenset({"metrics", "overview", "params", "tags"})
"""Kinds of records that a backend may send together."""
_FILE_KINDS = frozenset({"artifact", "image", "table", "model"})
"""Kinds whose failure does not delay the rest: the artifact store may be another machine than the server."""
_POLL_INTERVAL = 1.0  # seconds
_LONGEST_BACKOFF = 60.0  # seconds


class JournalTransfer:
    """Transfer of one node's journal. Not thread-safe: one thread calls `send_pending`."""

    def __init__(
        self, folder: RunFolder, uri: str, home: Home, warn: Warn, node: int = 0, sync: Callable[[], int] | None = None
    ) -> None:
        """`sync` flushes the journal to the disk and returns how many bytes are there; None: no writer here."""
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

    def send_pending(self, until: float | None = None, retry_files: bool = False) -> None:
        """Send the records after the cursor, up to the monotonic time `until`; none while another process sends them.

        Raises what MLflow raises when it does not answer, RunGoneError, and NotReadyError.
        """
        if not self.cursor_file.is_mine:
            if not self.cursor_file.acquire():
                return
            self.cursor = self.cursor_file.load()  # another process may have sent since this one began
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
                self._backend = None  # the store may have been made again: look again at the next attempt
            raise
        for offset in list(self.cursor.deferred) if retry_files else ():
            record = read_record_at(self.path, offset)
            if record is None or self._send_one(backend, record):
                self.cursor.deferred.remove(offset)
                self.cursor_file.save(self.cursor)
            if until is not None and time.monotonic() > until:
                return

    def close(self) -> None:
        """Release the lock, so that another process may send the journal."""
        self.cursor_file.release()

    def _connect(self) -> TrackingBackend:
        """Find or make the run at the backend, and save its id before anything is sent to it."""
        start, num_damaged = None, 0
        with open_regular_file(self.path, LARGEST_JOURNAL) as journal:
            for line in read_journal(journal):
                num_damaged += line.record is None and line.is_whole
                if line.record is not None and line.record["kind"] == "start":
                    start = line.record
                    break
        if start is None and self.to.node == 0:
            start = lost_start(self.to.folder) if num_damaged else None
            if start is None:
                raise NotReadyError(f"{self.path} does not say yet which run it belongs to")
        known = self.cursor.mlflow_run_id
        backend = backend_for(self.to.uri).connect(self.to, start, known)
        if backend.run_id != known:
            if known is not None:
                self.cursor = Cursor()  # it has lost the run: everything is sent again, from the beginning
            self.cursor.mlflow_run_id = backend.run_id
            self.cursor_file.save(self.cursor)
        self._parent = start.get("parent") if start and self.to.node == 0 else None
        return backend

    def _send_records(self, backend: TrackingBackend, until: float | None, durable: int) -> None:
        end, is_pending, num_damaged = self.cursor.offset, False, 0
        for line in read_lines(self.path, self.cursor.offset, durable):
            end, record = line.end, line.record
            if record is not None and record["kind"] in BATCHED_KINDS:
                is_pending = not backend.add(record, end - line.begin)
                if is_pending:
                    continue
                backend.flush()
            else:
                backend.flush()
                is_pending = False
                num_damaged += record is None
                if record is not None and not self._send_one(backend, record):
                    self.cursor.deferred.append(line.begin)
            self._advance(end)
            if until is not None and time.monotonic() > until:
                break
        if is_pending:
            backend.flush()
            self._advance(end)
        if num_damaged:
            self.to.warn(f"{self.path}: {damaged_lines(num_damaged)}")

    def _send_one(self, backend: TrackingBackend, record: JournalRecord) -> bool:
        """Send a record; returns False, with a warning once a process, for a file that is not taken now."""
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

    def _advance(self, offset: int) -> None:
        self.cursor.offset = offset
        self.cursor_file.save(self.cursor)


def lost_start(folder: RunFolder) -> JournalRecord | None:
    """Make a journal's `start` record from the run's record and spec; None where these are damaged, too."""
    try:
        record = read_run_record(folder)
        if record.trials:
            base = load_sweep(folder.path / "sweep.yaml", ()).base
            experiment = build_experiment(base, str(folder.path)).tracking.experiment
        else:
            experiment = load_recorded_experiment(folder.spec).tracking.experiment
    except (UnreadableRecord, UserError):
        return None
    started = int(datetime.fromisoformat(record.created).timestamp() * 1000)
    start = {
        "kind": "start", "time": started, "run_id": record.run_id,
        "name": record.name, "experiment": experiment, "family": record.family,
    }  # fmt: skip
    return {**start, "parent": record.parent} if record.parent else start


class BackgroundUploader:
    """A thread that sends a journal as it grows; MLflow's errors and delays affect neither caller nor journal."""

    def __init__(
        self, folder: RunFolder, uri: str, home: Home, warn: Warn, node: int, sync: Callable[[], int],
        begin: threading.Event,
    ) -> None:  # fmt: skip
        """`sync` is the journal's: it returns how many of its bytes are on the disk, all of them if it can.

        `begin` holds the first upload back.
        """
        self._transfer = JournalTransfer(folder, uri, home, warn, node, sync)
        self._stop, self._begin = threading.Event(), begin
        self._thread = threading.Thread(target=self._run, name="ditlab-uploader", daemon=True)
        self._until = math.inf

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of this run, once it has been reached."""
        return self._transfer.cursor.mlflow_run_id

    def close(self, timeout: float) -> int:
        """Send what is left for up to `timeout` seconds; returns how many records have not arrived."""
        self._until = time.monotonic() + timeout
        self._stop.set()
        self._begin.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return self._transfer.num_left()

    def _run(self) -> None:
        self._begin.wait(LONGEST_HELD)
        transfer, warn, uri = self._transfer, self._transfer.to.warn, redact(self._transfer.to.uri)
        backoff, is_outage, last_retry = _POLL_INTERVAL, False, time.monotonic()
        try:
            while True:
                closing = self._stop.is_set()
                retry = closing or time.monotonic() - last_retry > _LONGEST_BACKOFF
                try:
                    transfer.send_pending(self._until, retry_files=retry)
                    last_retry = time.monotonic() if retry else last_retry
                    backoff, is_outage = _POLL_INTERVAL, False
                    # Deferred files do not count: they were tried again and failed.
                    num_left = count_lines(transfer.path, transfer.cursor_file.load().offset) if closing else 1
                    if closing and (time.monotonic() > self._until or not num_left):
                        return
                except NotReadyError:
                    # The journal is closed by now: a start record that node 0 misses in it will not come any more.
                    if closing and (time.monotonic() > self._until or transfer.to.node == 0):
                        return
                except RunGoneError as error:
                    warn(f"{error}; everything stays in {transfer.path}")
                    return
                except Exception as error:
                    # No error may reach the training, and the next attempt may succeed. One warning for each outage.
                    if not is_outage:
                        refusal = refusal_message(uri, denial_status(error))
                        sentence = refusal or f"MLflow at {uri} takes nothing ({outage_reason(error)})"
                        warn(f"{sentence}; training goes on, metrics wait in {transfer.path}")
                    is_outage = True
                    if closing:
                        return
                    backoff = min(2 * backoff, _LONGEST_BACKOFF)
                self._stop.wait(backoff) if not closing else time.sleep(0.1)
        finally:
            transfer.close()
