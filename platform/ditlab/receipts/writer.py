"""Writing of a run's receipts, by its first worker: a damaged file or a full disk costs receipts,
never a step.
"""

import os
import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ditlab.errors import first_line
from ditlab.home import RunFolder
from ditlab.receipts.records import (
    ORIGIN,
    ROW,
    RecordedAttempt,
    intact_rows,
    next_head,
    parse_attempt,
)
from ditlab.storage.files import append_json_line, read_json_lines, sync_folder
from ditlab.storage.plain_files import MIB, UnusableFile, open_for_append

HELD = 1 * MIB
"""Bytes of rows that are held while the disk refuses them; beyond that, receipts begin again."""
_FACTS = struct.Struct("<QHBBIQ")
"""The bytes of a row before its three numbers, as `ROW` lays them out: faster than an array's
fields.
"""


class ReceiptWriter:
    """Writer of one run's receipts. `sync` may be called from another thread."""

    def __init__(self, folder: RunFolder, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._lock = threading.Lock()
        self._held = bytearray()
        self._file: int | None = None
        self._checksum = self._since = 0
        self._head = ORIGIN
        self._attempt: RecordedAttempt | None = None
        self._begun: RecordedAttempt | None = None
        """The attempt, until its first row."""
        self._has_warned = False
        self._known: dict[str, str] = {}

    def begin(self, attempt: RecordedAttempt, saved: Mapping[str, str]) -> None:
        """Begin an attempt, whose number and chain are filled in here.

        `saved` is the `receipt` of the checkpoint from which it goes on; empty for none. Where the
        rows up to there are not whole, the chain begins again at the attempt's step.
        """
        with self._lock:
            self._flush(durable=False)
            try:
                number, has_rows = self._open(attempt.step)
            except OSError as error:
                self._warn_once(error)
                self._attempt = None  # checkpoints say that no receipts lead to them
                return
            self._head = ORIGIN
            self._since = attempt.step
            if attempt.step and has_rows and "chain" in saved:
                self._head = saved["chain"]
                self._since = int(saved["since"])
            elif attempt.step and saved.get("chain"):
                self._warn(
                    f"{self._folder.receipt_rows} lacks rows up to step {attempt.step}: the "
                    "receipts of this run begin again there."
                )
            record = replace(attempt, attempt=number, chain=self._head).to_record()
            self._attempt = self._begun = parse_attempt(record)
            assert self._attempt is not None
            self._known = {name: str(record[name]) for name in ("code", "data", "spec_hash")}
            self._known["versions"] = ", ".join(
                f"{name} {version}" for name, version in attempt.versions.items()
            )
            try:
                append_json_line(self._folder.receipt_attempts, record)
            except OSError as error:
                self._warn_once(error)

    def add(
        self,
        step: int,
        samples: int,
        loss: float = 0.0,
        norm: float = 0.0,
        lr: float = 0.0,
        flags: int = 0,
        asked: int = 0,
    ) -> None:
        """Add the next step (from 1), whose row survives a kill. `samples`: its `samples_digest`;
        `norm`: unclipped. `asked`: as in `ROW`."""
        with self._lock:
            if self._attempt is None:
                return
            with np.errstate(over="ignore"):  # beyond float32's range is infinity
                numbers = np.array([loss, norm, lr], "<f4").tobytes()
            checked = _FACTS.pack(step, self._attempt.attempt, flags, asked, 0, samples) + numbers
            self._checksum = zlib.crc32(checked, self._checksum)
            written = checked + self._checksum.to_bytes(4, "little")
            self._head = next_head(self._head, written, self._begun)
            self._begun = None
            self._held += written
            self._flush(durable=False)

    def sync(self) -> None:
        """Bring all rows onto the disk."""
        with self._lock:
            self._flush(durable=True)

    def receipt(self) -> dict[str, str]:
        """Return what a checkpoint's manifest holds of the receipts so far; {} where none are
        written.
        """
        with self._lock:
            if self._attempt is None:
                return {}
            return {"chain": self._head, "since": str(self._since), **self._known}

    def close(self) -> None:
        """Bring all rows onto the disk, and close the file."""
        with self._lock:
            self._flush(durable=True)
            if self._file is not None:
                os.close(self._file)
            self._file = self._attempt = None

    def _open(self, step: int) -> tuple[int, bool]:
        """Open the files; return the next attempt's number, and whether the last rows up to `step`
        are whole. Damaged rows are moved aside with the whole file, and the whole ones before them
        stay."""
        self._folder.receipts.mkdir(parents=True, exist_ok=True)
        if self._file is None:
            self._file = open_for_append(self._folder.receipt_rows)
            sync_folder(self._folder.receipts)
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        rows = intact_rows(content)
        num_intact = len(rows) * ROW.itemsize  # bytes
        if num_intact < len(content):
            if len(content) - num_intact >= ROW.itemsize:
                aside = self._folder.receipt_rows.with_suffix(".bin.damaged")
                aside.write_bytes(content)
                self._warn(
                    f"{self._folder.receipt_rows} is damaged from row {len(rows) + 1} on; "
                    f"copied to {aside}."
                )
            os.ftruncate(self._file, num_intact)
        self._checksum = 0
        if len(rows):
            self._checksum = int(rows["crc"][-1])
        try:
            lines = read_json_lines(self._folder.receipt_attempts).records
        except UnusableFile as error:
            self._warn_once(error)
            lines = []
        numbers = [each.attempt for each in map(parse_attempt, lines) if each is not None]
        latest = max([0, *numbers, *rows["attempt"].tolist()])
        return min(latest + 1, 65535), bool(np.any(rows["step"] == step))

    def _flush(self, durable: bool) -> None:
        if self._file is None:
            return
        try:
            while self._held:
                written = os.write(self._file, self._held)
                del self._held[:written]
            if durable:
                os.fsync(self._file)
        except OSError as error:
            self._warn_once(error)
            if len(self._held) > HELD:
                os.close(self._file)
                self._file = self._attempt = None  # checkpoints say that no receipts lead to them
                self._held.clear()

    def _warn_once(self, error: OSError) -> None:
        if not self._has_warned:
            self._warn(
                f"{self._folder.receipts} cannot be written ({first_line(error)}); training "
                "goes on."
            )
        self._has_warned = True
