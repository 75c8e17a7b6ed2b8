"""Transfer of one journal to one MLflow address, from the saved cursor on.

The journal is the queue, so memory stays bounded whatever the server does. A cursor file remembers what has arrived;
a crash between arrival and cursor sends a few records twice, which leaves one copy of each (`sender.py`). Only what is
on the disk is sent: were a power cut to take from the journal what MLflow has, a resumed run would log it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ditlab.errors import first_line
from ditlab.home import Home, RunFolder
from ditlab.storage.files import sync_file
from ditlab.storage.plain_files import open_plain
from ditlab.tracking.journal.format import JournalRecord
from ditlab.tracking.journal.reader import (
    LARGEST_JOURNAL,
    count_lines,
    read_journal,
    read_lines,
    read_record_at,
)
from ditlab.tracking.journal.side_index import damaged_lines
from ditlab.tracking.upload.batch import BATCHED_KINDS, LogBatch
from ditlab.tracking.upload.connection import connect, forget_artifact_folder
from ditlab.tracking.upload.cursor import Cursor, CursorFile
from ditlab.tracking.upload.lost_start import lost_start
from ditlab.tracking.upload.mlflow_errors import RunGoneError, is_missing
from ditlab.tracking.upload.mlflow_runs import (
    check_alive,
    find_mlflow_run,
    find_or_create_experiment,
    find_or_create_mlflow_run,
)
from ditlab.tracking.upload.sender import RecordSender, Warn

_FILE_KINDS = frozenset({"artifact", "image", "table", "model"})
"""Kinds whose failure does not delay the rest: the artifact store may be another machine than the server."""


class NotReadyError(Exception):
    """No error: something else has to happen before the run can be sent to MLflow."""


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
        """`sync` flushes the journal to the disk and returns how many bytes are there; None: no writer here."""
        self.folder, self.uri, self.home, self.warn, self.node = folder, uri, home, warn, node
        self.path = folder.node_journal(node)
        self._sync = sync or (lambda: sync_file(self.path))
        self.cursor_file = CursorFile(folder, uri, node)
        self.cursor = self.cursor_file.load_received()
        self._sender: RecordSender | None = None
        self._parent: str | None = None
        self._has_warned_of_files = False

    def num_left(self) -> int:
        """Number of records that have not arrived."""
        cursor = self.cursor_file.load_received()
        return count_lines(self.path, cursor.offset) + len(cursor.deferred)

    def is_caught_up(self) -> bool:
        """Return True if every record was sent; deferred files do not count, as they were tried again and failed."""
        return count_lines(self.path, self.cursor_file.load_received().offset) == 0

    def send_pending(self, until: float | None = None, retry_files: bool = False) -> None:
        """Send the records after the cursor, up to the monotonic time `until`; none while another process sends them.

        Raises what MLflow raises when it does not answer, RunGoneError, and NotReadyError.
        """
        if not self.cursor_file.is_mine:
            if not self.cursor_file.acquire():
                return
            self.cursor = self.cursor_file.load_received()  # another process may have sent since this one began
        if not self._has_pending() and not (retry_files and self.cursor.deferred):
            return
        durable = self._sync()
        sender = self._sender = self._sender or self._connect()
        try:
            if self._parent is not None:
                self._nest(sender, self._parent)
            self._send_records(sender, until, durable)
        except Exception as error:
            if is_missing(error):
                self._sender = None  # the store may have been made anew: look again at the next attempt
            raise
        if retry_files:
            self._retry_files(sender, until)

    def close(self) -> None:
        """Release the lock, so that another process may send the journal."""
        self.cursor_file.release()

    def _has_pending(self) -> bool:
        return self.path.exists() and self.path.stat().st_size > self.cursor.offset

    def _connect(self) -> RecordSender:
        """Find or make the MLflow run, and save its id before anything is sent to it."""
        start = self._find_start()
        if start is None and self.node == 0:
            raise NotReadyError(f"{self.path} does not say yet which run it belongs to")
        client = connect(self.uri, self.home)
        if self.cursor.mlflow_run_id is not None:
            try:
                check_alive(client, self.cursor.mlflow_run_id)
            except Exception as error:
                if not is_missing(error):
                    raise
                # The store was made anew: everything is sent again, from the beginning.
                self.cursor = Cursor()
        if self.cursor.mlflow_run_id is None:
            self.cursor.mlflow_run_id = self._find_or_create_run(client, start)
            check_alive(client, self.cursor.mlflow_run_id)
            self.cursor_file.save(self.cursor)
        self._parent = start.get("parent") if start and self.node == 0 else None
        forget_artifact_folder(self.cursor.mlflow_run_id)
        return RecordSender(client, self.cursor.mlflow_run_id, self.folder, self.warn, self.node)

    def _find_start(self) -> JournalRecord | None:
        num_damaged = 0
        with open_plain(self.path, LARGEST_JOURNAL) as journal:
            for line in read_journal(journal):
                if line.record is None:
                    num_damaged += line.is_whole
                elif line.record["kind"] == "start":
                    return line.record
        return lost_start(self.folder) if num_damaged and self.node == 0 else None

    def _find_or_create_run(self, client: Any, start: JournalRecord | None) -> str:
        if start is None or self.node != 0:
            if found := find_mlflow_run(client, self.folder.run_id):
                return found
            raise NotReadyError("node 0 makes the run")
        experiment = find_or_create_experiment(client, start["experiment"], self.uri, self.home)
        return find_or_create_mlflow_run(client, experiment, start)

    def _nest(self, sender: RecordSender, parent: str) -> None:
        """Nest the run under its sweep, once MLflow has the sweep."""
        if found := find_mlflow_run(sender.client, parent):
            sender.set_parent(found)
            self._parent = None

    def _send_records(self, sender: RecordSender, until: float | None, durable: int) -> None:
        batch, end, num_damaged = LogBatch(), self.cursor.offset, 0
        for line in read_lines(self.path, self.cursor.offset, durable):
            begin, end, record = line.begin, line.end, line.record
            if record is not None and record["kind"] in BATCHED_KINDS:
                batch.add(record, end - begin)
                if not batch.is_full:
                    continue
                sender.send_batch(batch)
            else:
                sender.send_batch(batch)
                if record is not None:
                    self._send_one(sender, begin, record)
                else:
                    num_damaged += 1
            batch = LogBatch()
            self._advance(end)
            if until is not None and time.monotonic() > until:
                break
        if batch.num_bytes:
            sender.send_batch(batch)
            self._advance(end)
        if num_damaged:
            self.warn(f"{self.path}: {damaged_lines(num_damaged)}")

    def _send_one(self, sender: RecordSender, begin: int, record: JournalRecord) -> None:
        try:
            sender.send(record)
        except RunGoneError:
            raise
        except Exception as error:
            if record["kind"] not in _FILE_KINDS:
                raise
            self.cursor.deferred.append(begin)
            self._warn_of_file(record, error)

    def _retry_files(self, sender: RecordSender, until: float | None) -> None:
        """Send the deferred files again; those that fail again stay deferred."""
        for offset in list(self.cursor.deferred):
            record = read_record_at(self.path, offset)
            try:
                if record is not None:
                    sender.send(record)
            except RunGoneError:
                raise
            except Exception as error:
                self._warn_of_file(record or {}, error)
                continue
            self.cursor.deferred.remove(offset)
            self.cursor_file.save(self.cursor)
            if until is not None and time.monotonic() > until:
                return

    def _warn_of_file(self, record: JournalRecord, error: Exception) -> None:
        """Warn once a process."""
        if not self._has_warned_of_files:
            self._has_warned_of_files = True
            reason = first_line(error)
            self.warn(f"MLflow's artifact store takes no {record.get('path')} ({reason}); files wait, metrics go on")

    def _advance(self, offset: int) -> None:
        self.cursor.offset = offset
        self.cursor_file.save(self.cursor)
