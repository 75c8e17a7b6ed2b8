"""Trackio as a backend of tracking: journal records as rows, configuration, pictures and artifacts
of one run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ditlab.errors import UserError
from ditlab.tracking.backend import (
    Destination,
    NotReadyError,
    RunGoneError,
    TrackingBackend,
    recorded_file,
)
from ditlab.tracking.journal import JournalRecord
from ditlab.tracking.mlflow_backend import WEIGHTS_NAME, weights_step
from ditlab_addons.trackers.trackio_store import StoredRow, StoreGoneError, TrackioStore, as_text

ROWS_PER_CALL = 500
_PROJECT = re.compile(r"(?!registry-)[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_IN_NO_FOLDER = re.compile(r"[/\\\x00-\x1f]")
_RESERVED = re.compile(
    r".+_(system|configs|traces|artifact\w*|run_artifact_links|external_run_artifact_links)"
)
"""Projects whose files Trackio would take for those of another one."""


class TrackioBackend(TrackingBackend):
    """Sends records to one run of a Trackio project, which has DiTLab's id; `trackio show` shows
    it.
    """

    def __init__(
        self, to: Destination, store: TrackioStore, config: dict[str, Any], begun: int = 0
    ) -> None:
        self.run_id = f"{store.number}/{to.folder.run_id}"
        self._to = to
        self._store = store
        self._config = config
        self._begun = begun
        self._is_changed = False
        self._rows: list[StoredRow] = []

    @staticmethod
    def check_address(uri: str) -> None:
        """Raise UserError for a project that Trackio would give another name, and where it is not
        installed.
        """
        project = urlsplit(uri).path
        if not _PROJECT.fullmatch(project) or _RESERVED.fullmatch(project):
            raise UserError(
                f"tracking.uri={uri} names no project of Trackio; give trackio:PROJECT, of "
                "letters, digits, - and _."
            )
        if importlib.util.find_spec("trackio") is None:
            raise UserError(
                f"tracking.uri={uri} needs Trackio, which is not installed; pip install "
                "'ditlab[trackio]'."
            )

    @classmethod
    def connect(
        cls, to: Destination, start: JournalRecord | None, run_id: str | None
    ) -> TrackioBackend:
        """Find or make the run."""
        project = urlsplit(to.uri).path
        store = TrackioStore(to.home, project)
        own = to.folder.run_id
        config = store.config(own)
        if config is None and run_id == f"{store.number}/{own}":
            raise RunGoneError(f"run {own} was deleted from Trackio's project {project}")
        if config is None and (start is None or to.node != 0):
            raise NotReadyError("node 0 makes the run")
        if config is not None:
            return cls(to, store, config)
        assert start is not None
        # Trackio's pages sort and group runs by the two with an underscore.
        config = {
            # which also names a folder of pictures
            "run": f"{_IN_NO_FOLDER.sub('-', start['name'])[:60]}-{own}",
            "family": start["family"],
            "experiment": start["experiment"],
            "_Created": as_text(start["time"]),
            "_Group": start.get("parent"),
        }
        backend = cls(to, store, config, start["time"])
        backend._change({})
        backend.flush()
        return backend

    def add(self, record: JournalRecord, num_bytes: int) -> bool:
        """Take metrics, parameters or tags; return True where one call should send them."""
        values = record["values"]
        match record["kind"]:
            case "params":
                self._change(
                    {key: value for key, value in values.items() if key not in self._config}
                )
            case "tags":
                self._change(values)
            case _:
                self._add_row(record, {key: float(value) for key, value in values.items()})
        return len(self._rows) >= ROWS_PER_CALL

    def flush(self) -> None:
        """Send the rows, and the configuration where it has changed."""
        rows = self._rows
        self._rows = []
        config = None
        if self._is_changed:
            config = self._config
            # A configuration goes along with a row: an empty one, which is written with the first.
            rows.append(StoredRow({}, 0, self._begun, self.run_id))
        if rows:
            self._store.write(self._to.folder.run_id, self._config["run"], rows, config)
        self._is_changed = False

    def send(self, record: JournalRecord) -> None:
        """Send a record of another kind; one whose file is gone is dropped with a warning."""
        match record["kind"]:
            case "start":
                if self._to.node == 0:
                    self._change({"status": "running"})
            case "end":
                self._change({"status": record["status"]})
            case "dataset":
                facts = {key: record[key] for key in ("name", "fingerprint", "source", "counts")}
                self._change({f"data.{record['context']}": facts})
            case "image" | "note" | "artifact" | "table" | "model":
                path = recorded_file(self._to.folder, record, self._to.warn, "Trackio")
                if path is not None:
                    self._send_file(record, path)
        self.flush()

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Return True where the database is another one: everything is sent again."""
        return isinstance(error, StoreGoneError)

    def _send_file(self, record: JournalRecord, path: Path) -> None:
        run = self._to.folder.run_id
        name = self._config["run"]
        match record["kind"]:
            case "note":
                self._change({"note": path.read_text(encoding="utf-8", errors="replace")})
            case "image":
                key = record["key"]
                self._add_row(
                    record, {key: self._store.keep_picture(name, key, record["step"], path)}
                )
            case "model":
                step = record["step"]
                # newer weights have a record of their own
                if weights_step(path / WEIGHTS_NAME) == step:
                    self._store.add_artifact(run, name, "export", "model", path, [f"step-{step}"])
            case kind:
                label = "/".join(filter(None, (record["artifact_path"], path.name)))
                self._store.add_artifact(run, name, label, kind, path, [])

    def _add_row(self, record: JournalRecord, values: dict[str, Any]) -> None:
        """Add a row whose id is the same whenever its record is sent."""
        text = json.dumps([self._to.folder.run_id, self._to.node, record], sort_keys=True)
        self._rows.append(
            StoredRow(
                values, record["step"], record["time"], hashlib.sha256(text.encode()).hexdigest()
            )
        )

    def _change(self, values: dict[str, Any]) -> None:
        self._config |= values
        self._is_changed = True
