"""The append-only journal of a run: one JSON object a line, in the order things happened. Imports no mlflow.

Every record has `kind` and `time` (milliseconds since 1970). Kinds and their fields:

    start     run_id, name, experiment, family       dataset   name, fingerprint, source, counts, tags
    params    values                                 image     key, step, path
    tags      values                                 artifact  path, artifact_path
    metrics   step, values                           table     path, artifact_path
    end       status

Paths inside the run's folder are relative to it. NaN and infinities are strings: "NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ditlab.home import RunFolder

Record = dict[str, Any]

_DURABLE = frozenset({"start", "artifact", "table", "dataset", "end"})
"""Kinds that are on the disk when `append` returns."""
_SYNC_SECONDS = 2.0
"""What a power cut may cost of the rest; a killed process costs nothing, as every line goes to the kernel at once."""

_log = logging.getLogger("ditlab.tracking")


def journal_path(folder: RunFolder, node: int = 0) -> Path:
    """The journal of a node; node 0 writes the run's own."""
    return folder.journal if node == 0 else folder.journal.with_name(f"journal.node-{node}.jsonl")


class Journal:
    """Appends to one journal. Safe to use from several threads; one write call per record.

    Reopened, it knows the last step of every metric and image, and drops what it holds already: a resumed run repeats
    the steps since its checkpoint without logging them twice.
    """

    def __init__(self, folder: RunFolder, node: int = 0) -> None:
        self.folder = folder
        self.path = journal_path(folder, node)
        self.started: Record | None = None
        """The first `start` record, if there was one."""
        self.params: dict[str, str] = {}
        """Every parameter logged so far; the first value stays."""
        self._last_step: dict[str, int] = {}
        self._images: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._dirty = False
        self._needs_newline = False
        self._complained = False
        folder.path.mkdir(parents=True, exist_ok=True)
        self._remember()
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._syncer = threading.Thread(target=self._sync_now_and_then, name="ditlab-journal", daemon=True)
        self._syncer.start()

    def last_step(self, prefix: str) -> int | None:
        """The last step that the journal held at opening for any metric whose name begins with `prefix`."""
        return max((step for key, step in self._last_step.items() if key.startswith(prefix)), default=None)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record. A disk that refuses it is complained of once and costs no step."""
        record = {"kind": kind, "time": int(time.time() * 1000), **fields}
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._write(line)
            self._dirty = True
        if kind in _DURABLE:
            self.sync()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a step, without those that the journal held for this step or a later one at opening."""
        last = self._last_step
        new = {key: float(value) for key, value in values.items() if last.get(key, -1) < step}
        if new:
            self.append(
                "metrics", step=step, values={k: v if math.isfinite(v) else _NAMES[str(v)] for k, v in new.items()}
            )

    def image(self, key: str, step: int, path: Path) -> None:
        """Record a picture of a step, unless the journal held one of this key and step at opening."""
        if (key, step) not in self._images:
            self.append("image", key=key, step=step, path=self.relative(path))

    def relative(self, path: Path) -> str:
        """`path` as records hold it: relative to the run's folder when inside, else absolute."""
        path = path.absolute()
        return str(path.relative_to(self.folder.path)) if path.is_relative_to(self.folder.path) else str(path)

    def sync(self) -> None:
        """Return when every record so far is on the disk."""
        with self._lock:
            if self._closed.is_set() or not self._dirty:
                return
            self._dirty = False
            descriptor = os.dup(self._file)  # an fsync may take long: appends go on meanwhile
        try:
            os.fsync(descriptor)
        except OSError as error:
            self._complain(error)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Flush to the disk and close; closing twice is allowed."""
        if self._closed.is_set():
            return
        self.sync()
        with self._lock:
            self._closed.set()
            os.close(self._file)
        self._syncer.join()

    def _write(self, line: bytes) -> None:
        if self._closed.is_set():
            raise ValueError(f"{self.path} is closed")
        if self._needs_newline:
            line = b"\n" + line
        try:
            while line:
                written = os.write(self._file, line)
                self._needs_newline = written < len(line)
                line = line[written:]
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning(
                "%s cannot be written (%s): metrics are being lost, training goes on", self.path, error.strerror
            )

    def _sync_now_and_then(self) -> None:
        while not self._closed.wait(_SYNC_SECONDS):
            self.sync()

    def _remember(self) -> None:
        """Read what an earlier process left; its torn last line is cut off from ours by a newline, and skipped."""
        if not self.path.exists():
            return
        for record in read_records(self.path):
            match record["kind"]:
                case "metrics":
                    step = record["step"]
                    for key in record["values"]:
                        self._last_step[key] = max(step, self._last_step.get(key, -1))
                case "image":
                    self._images.add((record["key"], record["step"]))
                case "params":
                    self.params = {**record["values"], **self.params}
                case "start":
                    self.started = self.started or record
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                self._needs_newline = file.read(1) != b"\n"


def read_records(path: Path) -> Iterator[Record]:
    """Every whole record of a journal, in order; torn and damaged lines are passed over."""
    with path.open("rb") as file:
        for line in file:
            if (record := parse(line)) is not None:
                yield record


def parse(line: bytes) -> Record | None:
    """The record of a line, None for a damaged one."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "kind" in record and "time" in record else None


_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
