"""Appending to a run's journal, which outlives a killed process and a power cut.

What a journal holds already prevents double records, and carries each metric's thinning on where it
was. Thinning selects the points of a metric for MLflow: all of the first ones, then fewer and
fewer.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ditlab.home import RunFolder
from ditlab.storage.files import ends_torn, sync_folder
from ditlab.tracking.history import JournalFacts, RunResults
from ditlab.tracking.journal import (
    LONGEST_LINE,
    current_time,
    damaged_lines,
    encode_record,
    encode_values,
    read_content,
)

_DENSE = 10
"""A tenth of the budget goes before any point is held back."""
_DURABLE = frozenset({"start", "artifact", "table", "dataset", "model", "end"})
"""Kinds that are on the disk when `append` returns."""
_SYNC_INTERVAL = 2.0
"""Seconds of other records that a power cut may cost; a killed process costs nothing, as every line
goes to the kernel at once."""
_log = logging.getLogger("ditlab.tracking")


class Thinning:
    """One metric's thinning: selects at most `budget` of 10^6 points, or every point where `budget`
    is None.

    All of the first tenth of the budget are selected, then every second one, every fourth and so
    on: half a tenth of each doubling.
    """

    def __init__(self, budget: int | None) -> None:
        self._dense = None if budget is None else max(1, budget // _DENSE)
        self._num = 0

    def selects(self) -> bool:
        """Return True if the next point goes to MLflow."""
        num = self._num
        self._num = num + 1
        if self._dense is None:
            return True
        octave = (num // self._dense).bit_length()
        return num % (1 << octave) == 0


class JournalWriter:
    """Writer of one node's journal. Safe to use from several threads; one write call per record.

    A metric's value for a step that is not beyond its last one is dropped, even if it differs: a
    run that goes back to a checkpoint repeats steps, and MLflow never forgets a point. Of each
    metric about `budget` of 10^6 points go on to MLflow; None: all. `warn` gets a line on damage,
    and on a disk that refuses; None: it is logged.
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
        self.facts = JournalFacts()
        """Facts of the records that hold no metrics."""
        self.results = RunResults()
        """Results of the evaluations so far."""
        self._last_steps: dict[str, int] = {}  # by metric
        self._images: set[tuple[str, int]] = set()  # (key, step)
        self._thinnings: defaultdict[str, Thinning] = defaultdict(lambda: Thinning(budget))
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._file: int | None = None
        self._synced = 0
        self._needs_newline = False
        self._has_warned = False
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                content = read_content(self.path)
                for name, points in content.metrics.items():
                    self._last_steps[name] = max(points.steps)
                    thinning = self._thinnings[name]
                    for _ in points.values:
                        thinning.selects()
                for record in content.events:
                    self.facts.add(record)
                    if record["kind"] == "image":
                        self._images.add((record["key"], record["step"]))
                self.results.load(content)
                if content.num_damaged:
                    self._warn(f"{self.path}: {damaged_lines(content.num_damaged)}")
            self._open()
        except OSError as error:
            self._warn_once(error)
        self._syncer = threading.Thread(
            target=self._sync_periodically, name="ditlab-journal", daemon=True
        )
        self._syncer.start()

    def last_step(self, prefix: str) -> int | None:
        """The last step of any metric whose name begins with `prefix`."""
        with self._lock:
            steps = dict(self._last_steps)
        return max((step for key, step in steps.items() if key.startswith(prefix)), default=None)

    def append(self, kind: str, **fields: Any) -> None:
        """Write one record. Where the disk refuses it, the first refusal is logged as a warning,
        and none raises.
        """
        fields.setdefault("time", current_time())
        with self._lock:
            if self._write(encode_record(kind, fields)):
                self.facts.add({"kind": kind, **fields})
                if kind == "image":
                    self._images.add((fields["key"], fields["step"]))
        if kind in _DURABLE:
            self.sync()

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a step. A metric that has this step or a later one already is dropped,
        as after a return to a checkpoint.
        """
        with self._lock:
            sent: dict[str, float] = {}
            held: dict[str, float] = {}
            last_steps = self._last_steps
            thinnings = self._thinnings
            for key, raw in values.items():
                if last_steps.get(key, -1) >= step:
                    continue
                if thinnings[key].selects():
                    sent[key] = float(raw)
                else:
                    held[key] = float(raw)
            if not sent and not held:
                return
            now = current_time()
            fields: dict[str, Any] = {"time": now, "step": step, "values": encode_values(sent)}
            if held:
                fields["held"] = encode_values(held)
            if self._write(encode_record("metrics", fields)):
                logged = sent | held
                last_steps.update(dict.fromkeys(logged, step))
                self.results.add_step(step, logged, now)

    def log_overview(self, step: int, values: Mapping[str, float]) -> None:
        """Record figures for MLflow's list of runs, without those logged for this step or a later
        one.
        """
        steps = self.facts.overview_steps
        new = {key: value for key, value in values.items() if steps.get(key, -1) < step}
        if new:
            self.append("overview", step=step, values=encode_values(new))

    def log_cost(self) -> None:
        """Record the time of all attempts so far and the hours of devices, with their price; the
        step is the second.
        """
        with self._lock:
            self.facts.count_time(current_time())
        facts = self.facts
        costs = {
            f"run/{device.lower()}_hours": round(hours, 4)
            for device, hours in facts.device_hours.items()
        }
        if facts.price:
            costs["run/price"] = round(facts.price, 2)
        self.log_overview(int(facts.seconds), {"run/seconds": round(facts.seconds), **costs})

    def has_image(self, key: str, step: int) -> bool:
        """Return True if an image of this key and step is recorded."""
        with self._lock:
            return (key, step) in self._images

    def relative_path(self, path: Path) -> str:
        """A path as records hold it: relative to the run's folder when inside, else absolute."""
        path = path.absolute()
        if path.is_relative_to(self.folder.path):
            return str(path.relative_to(self.folder.path))
        return str(path)

    def sync(self) -> int:
        """Flush records to the disk; returns how many bytes are there. A refusal is a warning, and
        raises nothing.
        """
        try:
            with self._lock:
                if self._file is None:
                    return self._synced
                size = os.fstat(self._file).st_size
                if size <= self._synced:
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

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # A newline separates a torn last line of an earlier process from ours, and readers skip it.
        self._needs_newline = ends_torn(self._file)
        if os.fstat(self._file).st_size == 0:
            sync_folder(self.path.parent)

    def _write(self, line: bytes) -> bool:
        """Write a line; returns True if the whole line is in the file."""
        if self._closed.is_set():
            raise ValueError(f"{self.path} is closed")
        if len(line) > LONGEST_LINE:  # no reader would take it
            self._warn(
                f"{self.path}: a record of {len(line):,} bytes is not kept, as a line holds at "
                f"most {LONGEST_LINE:,}; training goes on"
            )
            return False
        try:
            if self._file is None:
                self._open()
            assert self._file is not None
            line = b"\n" * self._needs_newline + line
            written = os.write(self._file, line)
            while written < len(line):
                written += self._write_rest(line, written)
            self._needs_newline = False
            return True
        except OSError as error:
            self._warn_once(error)
        return False

    def _write_rest(self, line: bytes, written: int) -> int:
        """Write what a disk or a limit did not take at once. Raises the OSError that says why it
        did not, once the beginning is cut off; else the next line starts with a newline.
        """
        assert self._file is not None
        try:
            return os.write(self._file, line[written:])
        except OSError:
            size = os.fstat(self._file).st_size
            if os.pread(self._file, written, size - written) == line[:written]:
                os.ftruncate(self._file, size - written)
            else:
                self._needs_newline = True
            raise

    def _warn_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"{self.path} cannot be written ({error.strerror}): metrics are being lost, "
                "training goes on"
            )

    def _sync_periodically(self) -> None:
        while not self._closed.wait(_SYNC_INTERVAL):
            self.sync()
