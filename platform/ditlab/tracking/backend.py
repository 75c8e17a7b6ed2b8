"""Backends of tracking: what receives a run's journal, found by the scheme of its address. Imports
no backend.

A journal is sent record by record, in order, each once (of notes, which all show one file, the
newest, after the rest); what a backend did not confirm is sent again, so that sending a record
twice must leave one copy. Order, cursor, retries and delays are `tracking.upload`'s. MLflow is the
backend of every address that no other one claims; a second one is a class in a file of its own,
named by `ditlab.parts.Parts.trackers`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ditlab.home import Home, RunFolder
from ditlab.parts import load_part, named
from ditlab.storage.plain_files import is_relative, stays_below
from ditlab.tracking.journal import JournalRecord

Warn = Callable[[str], None]

MLFLOW = "ditlab.tracking.mlflow_backend:MlflowBackend"
"""Backend of the addresses that no other one claims."""


class RunGoneError(Exception):
    """The run was deleted at the backend; the journal keeps everything."""


class NotReadyError(Exception):
    """No error: something else has to happen before the run can be sent."""


@dataclass(frozen=True)
class Destination:
    """The run that a backend receives, and where."""

    uri: str
    """Resolved address."""
    home: Home
    folder: RunFolder
    """Folder of the run, which records name files in."""
    warn: Warn
    node: int = 0
    """Rank of the machine whose journal is sent; node 0 makes the run."""


class TrackingBackend(ABC):
    """Receiver of one journal. Any method may raise what its service raises when it does not
    answer.
    """

    run_id: str
    """The run's id at the backend."""

    @staticmethod  # noqa: B027  MLflow's addresses are checked by `tracking.access`
    def check_address(uri: str) -> None:
        """Raise UserError for a malformed address of its scheme, and where its library is not
        installed. Contacts nothing; called before a run begins, and before one is synced."""

    @classmethod
    @abstractmethod
    def connect(
        cls, to: Destination, start: JournalRecord | None, run_id: str | None
    ) -> TrackingBackend:
        """Find or make the run of a destination.

        `start` is the journal's `start` record, None for a node that makes no run; `run_id` is the
        id that it had there, and gets everything again under another. Raises RunGoneError for a
        deleted run, and NotReadyError where another process has to make it first.
        """

    @abstractmethod
    def send(self, record: JournalRecord) -> None:
        """Send a record (`journal` lists their kinds)."""

    def add(self, record: JournalRecord, num_bytes: int) -> bool:
        """Take metrics, parameters or tags, a line of `num_bytes`; return True where `flush` has to
        send them now.
        """
        self.send(record)
        return True

    def flush(self) -> None:  # noqa: B027  without batches there is nothing to send
        """Send what was added; an error drops it, as it is added again."""

    def nest(self, parent: str) -> bool:
        """Put the run below another run of ours; False while the backend has not got that one."""
        return True

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Return True for an error by which the backend has lost the run: it is connected to
        again.
        """
        return False


def recorded_file(
    folder: RunFolder, record: JournalRecord, warn: Warn, receiver: str
) -> Path | None:
    """Return the file or folder that a record names; None, with a warning, for one that cannot be
    sent.
    """
    path = folder.path / record["path"]
    fault = ""
    if not stays_below(folder.path, path) or not is_relative(record.get("artifact_path") or ""):
        fault = f"leads out of {folder.path}"
    elif not os.access(path, os.R_OK):
        fault = "is gone or unreadable"
    if fault:
        warn(f"{path} {fault}, so {receiver} does not get it")
        return None
    return path


def backend_for(uri: str) -> type[TrackingBackend]:
    """Import the backend of an address. Raises UserError where that of an add-on cannot be used."""
    scheme = urlsplit(uri).scheme
    backend: type[TrackingBackend] = load_part(
        "tracker", scheme, named("trackers").get(scheme, MLFLOW)
    )
    return backend
