"""One journal's way to one MLflow address, from where it last got to.

The journal is the queue, so memory stays bounded whatever the server does. A cursor file remembers what has arrived;
a crash between arrival and cursor sends a few records twice, which leaves one copy of each (`sender.py`). Only what is
on the disk is sent: were a power cut to take from the journal what MLflow has, a resumed run would log it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from ditlab.errors import first_line
from ditlab.home import Home, RunFolder
from ditlab.storage.files import sync_file
from ditlab.tracking.journal.format import Record, parse, read_records
from ditlab.tracking.journal.writer import journal_path
from ditlab.tracking.upload import client as mlflow_room
from ditlab.tracking.upload.client import RunGoneError
from ditlab.tracking.upload.cursor import Cursor, CursorFile
from ditlab.tracking.upload.sender import Batch, Sender

Warn = Callable[[str], None]

_CHUNK_BYTES = 1 << 20
_FILES = frozenset({"artifact", "image", "table"})
"""Kinds whose failure does not hold up the rest: the artifact store may be another machine than the server."""


class NotReadyError(Exception):
    """Nothing is wrong, but the run cannot be sent to before something else has happened."""


class JournalTransfer:
    """One journal on its way to one MLflow address. Not thread-safe: one thread pumps."""

    def __init__(
        self,
        folder: RunFolder,
        uri: str,
        home: Home,
        warn: Warn,
        node: int = 0,
        sync: Callable[[], int] | None = None,
    ) -> None:
        """`sync` puts the journal on the disk and returns how many bytes of it are; None: nobody here writes it."""
        self.folder, self.uri, self.home, self.warn, self.node = folder, uri, home, warn, node
        self.path = journal_path(folder, node)
        self._sync = sync or (lambda: sync_file(self.path))
        self.cursor_file = CursorFile(folder, uri, node)
        self.cursor = self.cursor_file.load()
        self._sender: Sender | None = None
        self._parent: str | None = None
        self._told_of_files = False

    def left(self) -> int:
        """Records that have not arrived."""
        cursor = self.cursor_file.load()
        return self._num_after(cursor) + len(cursor.deferred)

    def is_caught_up(self) -> bool:
        """Whether all that can be sent has been: deferred files were tried again and will not go now."""
        return self._num_after(self.cursor_file.load()) == 0

    def _num_after(self, cursor: Cursor) -> int:
        """Whole lines; what a killed process left of its last one is none."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            file.seek(cursor.offset)
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))

    def pump(self, until: float | None = None, retry_files: bool = False) -> None:
        """Send what there is, up to the monotonic time `until`; nothing while another process is sending.

        Raises what MLflow raises when it does not answer, RunGoneError, and NotReadyError.
        """
        if not self.cursor_file.is_mine:
            if not self.cursor_file.acquire():
                return
            self.cursor = self.cursor_file.load()  # another process may have sent since this one began
        if not self._has_news() and not (retry_files and self.cursor.deferred):
            return
        durable = self._sync()
        sender = self._sender = self._sender or self._make_contact()
        try:
            if self._parent is not None:
                self._nest(sender, self._parent)
            self._send_news(sender, until, durable)
        except Exception as error:
            if mlflow_room.is_missing(error):
                self._sender = None  # the store may have been made anew: look again at the next attempt
            raise
        if retry_files:
            self._retry_files(sender, until)

    def close(self) -> None:
        self.cursor_file.release()

    def _has_news(self) -> bool:
        return self.path.exists() and self.path.stat().st_size > self.cursor.offset

    def _make_contact(self) -> Sender:
        """Find or make the MLflow run, and save its id before anything is sent to it."""
        start = next((record for record in read_records(self.path) if record["kind"] == "start"), None)
        if start is None and self.node == 0:
            raise NotReadyError(f"{self.path} does not say yet which run it belongs to")
        client = mlflow_room.connect(self.uri, self.home)
        if self.cursor.mlflow_run_id is not None:
            try:
                mlflow_room.check_alive(client, self.cursor.mlflow_run_id)
            except Exception as error:
                if not mlflow_room.is_missing(error):
                    raise
                # The store was made anew: everything is sent again, from the beginning.
                self.cursor = Cursor()
        if self.cursor.mlflow_run_id is None:
            self.cursor.mlflow_run_id = self._find_or_make(client, start)
            mlflow_room.check_alive(client, self.cursor.mlflow_run_id)
            self.cursor_file.save(self.cursor)
        self._parent = start.get("parent") if start and self.node == 0 else None
        return Sender(client, self.cursor.mlflow_run_id, self.folder, self.warn, self.node)

    def _find_or_make(self, client: Any, start: Record | None) -> str:
        if start is None or self.node != 0:
            if found := mlflow_room.find_mlflow_run(client, self.folder.run_id):
                return found
            raise NotReadyError("node 0 makes the run")
        experiment = mlflow_room.experiment_id(client, start["experiment"], self.uri, self.home)
        return mlflow_room.find_or_create_mlflow_run(client, experiment, start)

    def _nest(self, sender: Sender, parent: str) -> None:
        """Hang the run under its sweep, as soon as MLflow knows the sweep."""
        if found := mlflow_room.find_mlflow_run(sender.client, parent):
            sender.adopt(found)
            self._parent = None

    def _send_news(self, sender: Sender, until: float | None, durable: int) -> None:
        batch = Batch()
        for begin, end, record in self._news(durable):
            if record is not None and record["kind"] in ("metrics", "params", "tags"):
                batch.add(record, end - begin)
                if not batch.full:
                    continue
                sender.send_batch(batch)
            else:
                sender.send_batch(batch)
                if record is not None:
                    self._send_one(sender, begin, record)
            batch = Batch()
            self._arrived(end)
            if until is not None and time.monotonic() > until:
                return
        if batch.bytes:
            sender.send_batch(batch)
            self._arrived(end)

    def _send_one(self, sender: Sender, begin: int, record: Record) -> None:
        try:
            sender.send(record)
        except RunGoneError:
            raise
        except Exception as error:
            if record["kind"] not in _FILES:
                raise
            self.cursor.deferred.append(begin)
            self._tell_of_file(record, error)

    def _retry_files(self, sender: Sender, until: float | None) -> None:
        """Try the deferred files again; those that fail again stay deferred."""
        for offset in list(self.cursor.deferred):
            with self.path.open("rb") as file:
                file.seek(offset)
                record = parse(file.readline())
            try:
                if record is not None:
                    sender.send(record)
            except RunGoneError:
                raise
            except Exception as error:
                self._tell_of_file(record or {}, error)
                continue
            self.cursor.deferred.remove(offset)
            self.cursor_file.save(self.cursor)
            if until is not None and time.monotonic() > until:
                return

    def _tell_of_file(self, record: Record, error: Exception) -> None:
        """One line a process."""
        if not self._told_of_files:
            self._told_of_files = True
            reason = first_line(error)
            self.warn(f"MLflow's artifact store takes no {record.get('path')} ({reason}); files wait, metrics go on")

    def _news(self, durable: int) -> Iterator[tuple[int, int, Record | None]]:
        """(begin, end, record) of each whole line after the cursor, up to `durable` bytes; None for a damaged line."""
        with self.path.open("rb") as file:
            file.seek(self.cursor.offset)
            begin = self.cursor.offset
            for line in file:
                if not line.endswith(b"\n") or begin + len(line) > durable:
                    return
                yield begin, begin + len(line), parse(line)
                begin += len(line)

    def _arrived(self, offset: int) -> None:
        self.cursor.offset = offset
        self.cursor_file.save(self.cursor)
