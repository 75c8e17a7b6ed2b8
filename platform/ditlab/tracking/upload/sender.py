"""Journal records as MLflow calls. Sending a record twice leaves one copy."""

from __future__ import annotations

import json
import logging
import os
import posixpath
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ditlab.errors import first_line
from ditlab.home import RunFolder
from ditlab.tracking.journal.format import Record
from ditlab.tracking.names import PARAM_LENGTH, TAG_LENGTH, safe_image_key, safe_key, shorten
from ditlab.tracking.upload.client import check_alive, is_refusal
from ditlab.tracking.upload.path_safety import is_relative, stays_below

_METRICS_PER_CALL = 500
"""The quickest size measured: 13,200 points a second, against 8,100 with 1000."""
_STATUS = {"finished": "FINISHED", "stopped": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_DIGEST_LENGTH = 36
"""Characters that MLflow keeps of a dataset's digest."""

_log = logging.getLogger("ditlab.tracking")


class Batch:
    """Metrics, parameters and tags on their way to one `log_batch` call."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.bytes = 0

    def add(self, record: Record, num_bytes: int) -> None:
        from mlflow.entities import Metric

        self.bytes += num_bytes
        match record["kind"]:
            case "metrics":
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
    def full(self) -> bool:
        """MLflow takes 1000 metrics, 100 parameters, 100 tags and 1 MB a call."""
        most = max(len(self.metrics) / _METRICS_PER_CALL, len(self.params) / 100, len(self.tags) / 100)
        return most >= 1 or self.bytes > 500_000


class Sender:
    """Sends to one MLflow run. Every method raises what MLflow raises when it does not answer."""

    def __init__(
        self, client: Any, mlflow_run_id: str, folder: RunFolder, warn: Callable[[str], None], node: int = 0
    ) -> None:
        self.client = client
        self.node = node
        self.run_id = mlflow_run_id
        self.folder = folder
        self.warn = warn

    def send_batch(self, batch: Batch) -> None:
        """Send a batch; a value that MLflow refuses is dropped with a warning, the others arrive."""
        from mlflow.entities import Param, RunTag

        entries: list[Any] = [RunTag(key, value) for key, value in batch.tags.items()]
        entries += [Param(key, value) for key, value in batch.params.items()]
        for start in range(0, len(entries), 100):
            self._send_entries(entries[start : start + 100])
        for start in range(0, len(batch.metrics), _METRICS_PER_CALL):
            self._send_entries(batch.metrics[start : start + _METRICS_PER_CALL])

    def send(self, record: Record) -> None:
        """Send any other record."""
        try:
            getattr(self, f"_send_{record['kind']}", self._ignore)(record)
        except Exception as error:
            if not is_refusal(error):
                raise
            check_alive(self.client, self.run_id)
            self.warn(f"MLflow refused the {record['kind']} ({first_line(error)}); it stays in the journal only")

    def adopt(self, parent: str) -> None:
        """Nest this run under another."""
        self.client.set_tag(self.run_id, "mlflow.parentRunId", parent)

    def _send_entries(self, entries: Sequence[Any]) -> None:
        """One call; when refused, halves of it, down to the entry at fault."""
        from mlflow.entities import Metric, Param, RunTag

        if not entries:
            return
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

    def _send_start(self, record: Record) -> None:
        # Of a new run this changes nothing; a resumed one runs again. Node 0 alone says so: another node's start may be
        # replayed after the run's end.
        if self.node == 0:
            self.client.update_run(self.run_id, status="RUNNING")

    def _send_end(self, record: Record) -> None:
        self.client.set_terminated(self.run_id, _STATUS.get(record["status"], "FAILED"), end_time=record["time"])

    def _send_image(self, record: Record) -> None:
        """As `log_image` does, which makes a new name at each call: sent again, it would show twice."""
        from mlflow.tracking.multimedia import compress_image_size
        from PIL import Image

        path = self._local(record)
        if path is None:
            return
        name = image_name(self.folder.run_id, safe_image_key(record["key"]), record["step"], record["time"])
        with Image.open(path) as picture, tempfile.TemporaryDirectory() as folder:
            image = picture.convert("RGB")
            whole, small = Path(folder, f"{name}.png"), Path(folder, f"{name}+compressed.webp")
            image.save(whole)
            compress_image_size(image).save(small)
            for file in (whole, small):
                self.client.log_artifact(self.run_id, str(file), "images")
        self.client.set_tag(self.run_id, "mlflow.loggedImages", True)

    def _send_artifact(self, record: Record) -> None:
        path = self._local(record)
        if path is None:
            return
        if path.is_dir():
            self.client.log_artifacts(self.run_id, str(path), record["artifact_path"])
        else:
            self.client.log_artifact(self.run_id, str(path), record["artifact_path"])

    def _send_table(self, record: Record) -> None:
        """As `log_table` does, which appends to a file that is there: a replay would double its rows."""
        path = self._local(record)
        if path is None:
            return
        self.client.log_artifact(self.run_id, str(path), record["artifact_path"])
        entry = {"path": posixpath.join(record["artifact_path"] or "", path.name), "type": "table"}
        tags = self.client.get_run(self.run_id).data.tags
        tables = json.loads(tags.get("mlflow.loggedArtifacts", "[]"))
        if entry not in tables:
            self.client.set_tag(self.run_id, "mlflow.loggedArtifacts", json.dumps([*tables, entry]))

    def _send_dataset(self, record: Record) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=shorten(record["name"], 500),
            digest=record["fingerprint"][:_DIGEST_LENGTH],
            source_type="local",
            source=json.dumps({"uri": record["source"]}),
            profile=json.dumps(record["counts"]),
        )
        tags = [InputTag("mlflow.data.context", record["context"])]
        self.client.log_inputs(self.run_id, [DatasetInput(dataset, tags)])

    def _ignore(self, record: Record) -> None:
        _log.debug("record of unknown kind %r passed over", record["kind"])

    def _local(self, record: Record) -> Path | None:
        """The file that a record points to; one that has gone, or lies outside the run's folder, is said so."""
        path = self.folder.path / record["path"]
        if not stays_below(self.folder.path, path) or not is_relative(record.get("artifact_path") or ""):
            self.warn(f"{path} leads out of {self.folder.path}, so MLflow does not get it")
            return None
        if os.access(path, os.R_OK):
            return path
        self.warn(f"{path} is gone or unreadable, so MLflow does not get it")
        return None


def image_name(run_id: str, key: str, step: int, time: int) -> str:
    """The name under which MLflow's UI looks for an image; the same at each call, where MLflow draws a random one."""
    unique = uuid.uuid5(uuid.NAMESPACE_URL, f"ditlab:{run_id}/{key}/{step}/{time}")
    return f"{key.replace('/', '~')}+step+{step}+timestamp+{time}+{unique}"
