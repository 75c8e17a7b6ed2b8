"""MLflow as a backend of tracking: journal records as its calls. Sending a record twice leaves one copy."""

from __future__ import annotations

import json
import logging
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ditlab.errors import first_line
from ditlab.home import RunFolder
from ditlab.storage.plain_files import MIB, holds_plain_files, is_relative, read_plain, stays_below
from ditlab.tracking.backend import Destination, NotReadyError, TrackingBackend, Warn
from ditlab.tracking.journal import JournalRecord
from ditlab.tracking.mlflow_connection import connect, forget_artifact_folder, is_missing, is_refusal
from ditlab.tracking.mlflow_images import read_image, send_image
from ditlab.tracking.mlflow_models import DIGEST_LENGTH, send_model, send_note
from ditlab.tracking.mlflow_runs import (
    check_alive,
    find_mlflow_run,
    find_or_create_experiment,
    find_or_create_mlflow_run,
)
from ditlab.tracking.names import PARAM_LENGTH, TAG_LENGTH, safe_key, shorten
from ditlab.tracking.notes import with_addresses

_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_log = logging.getLogger("ditlab.tracking")
METRICS_PER_CALL = 500
"""The quickest size measured: 13,200 points a second, against 8,100 with 1000."""
ENTRIES_PER_CALL = 100
"""Parameters, and tags, that MLflow takes a call."""
_BYTES_PER_CALL = 500_000
"""Bytes of journal lines; MLflow takes 1 MB of JSON."""


class MlflowBackend(TrackingBackend):
    """Sends records to one MLflow run. Every method raises what MLflow raises when it does not answer."""

    def __init__(self, client: Any, run_id: str, folder: RunFolder, warn: Warn, node: int = 0) -> None:
        self.client, self.run_id, self.folder, self.warn, self.node = client, run_id, folder, warn, node
        self._batch = LogBatch()

    @classmethod
    def connect(cls, to: Destination, start: JournalRecord | None, run_id: str | None) -> MlflowBackend:
        """Find or make the MLflow run; one that is lost with its store is made again."""
        client = connect(to.uri, to.home)
        if run_id is not None:
            try:
                check_alive(client, run_id)
            except Exception as error:
                if not is_missing(error):
                    raise
                run_id = None  # the store was made again
        if run_id is None:
            run_id = _find_or_create_run(client, to, start)
            check_alive(client, run_id)
        forget_artifact_folder(run_id)
        return cls(client, run_id, to.folder, to.warn, to.node)

    def add(self, record: JournalRecord, num_bytes: int) -> bool:
        """Take metrics, parameters or tags; return True where one call can hardly take more."""
        self._batch.add(record, num_bytes)
        return self._batch.is_full

    def flush(self) -> None:
        """Send the batch; a value that MLflow refuses is dropped with a warning, the others arrive."""
        batch, self._batch = self._batch, LogBatch()
        for entries in batch.calls():
            self._send_entries(entries)

    def send(self, record: JournalRecord) -> None:
        """Send a record of any other kind; one that MLflow refuses is dropped with a warning."""
        try:
            getattr(self, f"_send_{record['kind']}")(record)
        except Exception as error:
            if not is_refusal(error):
                raise
            check_alive(self.client, self.run_id)
            self.warn(f"MLflow refused the {record['kind']} ({first_line(error)}); it stays in the journal only")

    def nest(self, parent: str) -> bool:
        """Nest this run under another of ours, once MLflow has that one."""
        if found := find_mlflow_run(self.client, parent):
            self.client.set_tag(self.run_id, "mlflow.parentRunId", found)
        return bool(found)

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Return True if the run or its experiment does not exist: the store may have been made again."""
        return is_missing(error)

    def _send_entries(self, entries: Sequence[Any]) -> None:
        """Send entries in one call; a refused call is repeated with halves of them, down to the entry at fault."""
        from mlflow.entities import Metric, Param, RunTag

        of = {kind: [e for e in entries if isinstance(e, kind)] for kind in (Metric, Param, RunTag)}
        try:
            self.client.log_batch(self.run_id, of[Metric], of[Param], of[RunTag], synchronous=True)
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(entries) == 1:
                check_alive(self.client, self.run_id)
                self.warn(f"MLflow refused {entries[0].key} ({first_line(error)}); it stays in the journal only")
                return
            self._send_entries(entries[: len(entries) // 2])
            self._send_entries(entries[len(entries) // 2 :])

    def _send_start(self, record: JournalRecord) -> None:
        # This changes nothing of a new run; a resumed one becomes active again. Node 0 alone sends it: another node's
        # start may be sent after the run's end.
        if self.node == 0:
            self.client.update_run(self.run_id, status="RUNNING")

    def _send_end(self, record: JournalRecord) -> None:
        self.client.set_terminated(self.run_id, _STATUS.get(record["status"], "FAILED"), end_time=record["time"])

    def _send_image(self, record: JournalRecord) -> None:
        from PIL import Image

        path = self._local_file(record)
        if path is None:
            return
        try:
            image = read_image(path)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            self.warn(f"{path} is no picture ({first_line(error)}), so MLflow does not get it")
            return
        send_image(self.client, self.run_id, self.folder.run_id, image, record)

    def _send_note(self, record: JournalRecord) -> None:
        path = self._local_file(record)
        if path is None:
            return
        try:
            text = read_plain(path, MIB).decode(errors="replace")
        except OSError as error:
            self.warn(f"{path} cannot be read ({first_line(error)}), so MLflow does not get it")
            return
        experiment_id = str(self.client.get_run(self.run_id).info.experiment_id)
        send_note(self.client, self.run_id, shorten(with_addresses(text, experiment_id, self.run_id), TAG_LENGTH))

    def _send_model(self, record: JournalRecord) -> None:
        path = self._local_file(record)
        if path is not None:
            send_model(self.client, self.run_id, self.folder.run_id, path, record)

    def _send_artifact(self, record: JournalRecord) -> None:
        path = self._local_file(record)
        if path is None:
            return
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), record["artifact_path"])
        else:
            self.client.log_artifact(self.run_id, str(path), record["artifact_path"])

    def _send_table(self, record: JournalRecord) -> None:
        """Send a table as `log_table` does, which appends to an existing file: sent again, it would double its rows."""
        path = self._local_file(record)
        if path is None:
            return
        self.client.log_artifact(self.run_id, str(path), record["artifact_path"])
        entry = {"path": posixpath.join(record["artifact_path"] or "", path.name), "type": "table"}
        tags = self.client.get_run(self.run_id).data.tags
        tables = json.loads(tags.get("mlflow.loggedArtifacts", "[]"))
        if entry not in tables:
            self.client.set_tag(self.run_id, "mlflow.loggedArtifacts", json.dumps([*tables, entry]))

    def _send_dataset(self, record: JournalRecord) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=shorten(record["name"], 500),
            digest=record["fingerprint"][:DIGEST_LENGTH],
            source_type="local",
            source=json.dumps({"uri": record["source"]}),
            profile=json.dumps(record["counts"]),
        )
        tags = [InputTag("mlflow.data.context", record["context"])]
        self.client.log_inputs(self.run_id, [DatasetInput(dataset, tags)])

    def _local_file(self, record: JournalRecord) -> Path | None:
        """The file that a record points to; None, with a warning, where it is gone or outside the run's folder."""
        path = self.folder.path / record["path"]
        if not stays_below(self.folder.path, path) or not is_relative(record.get("artifact_path") or ""):
            self.warn(f"{path} leads out of {self.folder.path}, so MLflow does not get it")
            return None
        if os.access(path, os.R_OK) and holds_plain_files(path):
            return path
        self.warn(f"{path} is gone or unreadable, so MLflow does not get it")
        return None


def _find_or_create_run(client: Any, to: Destination, start: JournalRecord | None) -> str:
    if start is None or to.node != 0:
        if found := find_mlflow_run(client, to.folder.run_id):
            return found
        raise NotReadyError("node 0 makes the run")
    experiment = find_or_create_experiment(client, start["experiment"], to.uri, to.home)
    return find_or_create_mlflow_run(client, experiment, start)


class LogBatch:
    """Records of the kinds `metrics`, `overview`, `params` and `tags`, as MLflow takes them."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.num_bytes = 0
        """Length of the records' lines."""

    def add(self, record: JournalRecord, num_bytes: int) -> None:
        """Add a record whose line has this length."""
        from mlflow.entities import Metric

        self.num_bytes += num_bytes
        match record["kind"]:
            case "metrics" | "overview":
                time, step = record["time"], record["step"]
                self.metrics += [
                    Metric(safe_key(key), float(value), time, step) for key, value in record["values"].items()
                ]
            case "params":
                for key, value in record["values"].items():
                    self.params.setdefault(safe_key(key), shorten(value, PARAM_LENGTH))
            case "tags":
                self.tags |= {safe_key(key): shorten(value, TAG_LENGTH) for key, value in record["values"].items()}

    @property
    def is_full(self) -> bool:
        """True if one call can hardly take more."""
        num_entries = max(len(self.params), len(self.tags))
        return (
            len(self.metrics) >= METRICS_PER_CALL or num_entries >= ENTRIES_PER_CALL or self.num_bytes > _BYTES_PER_CALL
        )

    def calls(self) -> list[list[Any]]:
        """MLflow's entities, tags and parameters first, in lists that one call takes each."""
        from mlflow.entities import Param, RunTag

        entries: list[Any] = [RunTag(key, value) for key, value in self.tags.items()]
        entries += [Param(key, value) for key, value in self.params.items()]
        return [
            *(entries[start : start + ENTRIES_PER_CALL] for start in range(0, len(entries), ENTRIES_PER_CALL)),
            *(
                self.metrics[start : start + METRICS_PER_CALL]
                for start in range(0, len(self.metrics), METRICS_PER_CALL)
            ),
        ]
