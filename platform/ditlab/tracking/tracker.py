"""What the launcher hands around: everything about a run goes into its journal, and from there to MLflow."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ditlab.home import Home, RunFolder
from ditlab.secrets import hide
from ditlab.storage.files import sync_file
from ditlab.tracking.address import resolve_tracking_uri
from ditlab.tracking.journal.writer import JournalWriter
from ditlab.tracking.system_metrics import SystemMetrics
from ditlab.tracking.upload.background import BackgroundUploader
from ditlab.tracking.upload.client import PARENT_TAG
from ditlab.tracking.upload.transfer import Warn

CATCH_UP = 30.0  # seconds that the end of a run waits for MLflow

_log = logging.getLogger("ditlab.tracking")


class RunTracker:
    """Logs one run. Nothing here waits for MLflow or raises because of it; any thread may call any method.

    A run that ended can be opened and logged to again (`ditlab evaluate`). `node` is the rank of the machine: node 0
    makes the MLflow run; the others join it and need no `start`.
    """

    def __init__(
        self,
        folder: RunFolder,
        uri: str | None,
        home: Home,
        *,
        node: int = 0,
        budget: int | None = None,
        warn: Warn | None = None,
    ) -> None:
        """Raises UserError for a malformed address. `warn` gets a line for what a person should know of MLflow.

        `budget` is the spec's `tracking.budget`: about how many of 10^6 points of a metric reach MLflow; None: all.
        """
        self.uri = resolve_tracking_uri(uri, home)
        self.folder = folder
        self._node = node
        self._journal = JournalWriter(folder, node, budget)
        self._system: SystemMetrics | None = None
        tell = warn or _log.warning
        self._warn: Warn = lambda message: tell(hide(message))
        self._uploader = BackgroundUploader(folder, self.uri, home, self._warn, node, self._journal.sync)
        self._uploader.start()

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of this run, once it has been reached."""
        return self._uploader.mlflow_run_id

    def start(
        self,
        name: str,
        experiment: str,
        family: str,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Begin or resume. `params` is a flattened spec; the tag `ditlab.parent` (a run id) nests a trial.

        Parameters never change in MLflow: those of a resume that differ become tags, `ditlab.resume.<parameter>`.
        """
        tags = {"ditlab.run": self.folder.run_id, **(tags or {})}
        parent = {"parent": tags[PARENT_TAG]} if PARENT_TAG in tags else {}
        known = self._journal.params
        params = {key: hide(value) for key, value in (params or {}).items()}
        changed = {key: value for key, value in params.items() if known.get(key, value) != value}
        tags |= {f"ditlab.resume.{key}": value for key, value in changed.items()}
        self._journal.append(
            "start", run_id=self.folder.run_id, name=name, experiment=experiment, family=family, **parent
        )
        self.log_params({key: value for key, value in params.items() if key not in known})
        self.set_tags(tags)

    def log_params(self, params: Mapping[str, str]) -> None:
        """Facts that never change; a name that was logged before keeps its first value."""
        new = {key: hide(str(value)) for key, value in params.items() if key not in self._journal.params}
        self._journal.params.update(new)
        if new:
            self._journal.append("params", values=new)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Facts that may change; the last value counts."""
        if tags:
            self._journal.append("tags", values={key: hide(str(value)) for key, value in tags.items()})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step, `train/loss` and the like. Those logged for this step or a later one are passed over.

        So a run that went back to a checkpoint logs nothing twice, and of two values for one step (`ditlab evaluate`
        run again) the first one stays.
        """
        self._journal.metrics(step, metrics)

    def log_image(self, key: str, step: int, path: Path) -> None:
        """A PNG that belongs to a step: MLflow shows all steps of a key as a row. Copied into the run's folder.

        A picture of this key and step that was logged before stays.
        """
        if self._journal.holds_image(key, step):
            return
        try:
            if not path.absolute().is_relative_to(self.folder.path):
                self.folder.media.mkdir(parents=True, exist_ok=True)
                path = Path(shutil.copy(path, self.folder.media / f"{key.replace('/', '-')}-{step:08d}{path.suffix}"))
            sync_file(path)
        except OSError as error:
            self._warn(f"{path} cannot be kept ({error.strerror}), so MLflow does not get it")
            return
        self._journal.image(key, step, path)

    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """A file or folder, for MLflow's folder `artifact_path`. It is read when MLflow takes it: one in the run's
        folder shall stay there; any other is copied into it."""
        try:
            if not path.absolute().is_relative_to(self.folder.path):
                path = _copy(path, self.folder.media / "artifacts" / (artifact_path or ""))
        except OSError as error:
            self._warn(f"{path} cannot be kept ({error.strerror}), so MLflow does not get it")
            return
        self._journal.append("artifact", path=self._journal.relative(path), artifact_path=artifact_path)

    def log_text(self, text: str, file: str) -> None:
        """Text as an artifact; `file` may name a folder: `environment/packages.txt`."""
        self._log_media(text, file, "artifact")

    def log_table(self, data: Mapping[str, Sequence[Any]], file: str) -> None:
        """Columns by name, of one length, as a table artifact that MLflow's UI shows; `file` ends in `.json`."""
        rows = [list(row) for row in zip(*data.values(), strict=True)]
        table = {"columns": list(data), "index": list(range(len(rows))), "data": rows}
        self._log_media(json.dumps(table, default=str), file, "table")

    def log_dataset(
        self,
        name: str,
        fingerprint: str,
        source: str,
        counts: Mapping[str, int] | None = None,
        context: Literal["training", "evaluation"] = "training",
    ) -> None:
        """The data of a run: MLflow's digest is the fingerprint's first 36 characters, its profile the counts."""
        self._journal.append(
            "dataset", name=name, fingerprint=fingerprint, source=source, counts=dict(counts or {}), context=context
        )

    def watch_system(self, interval: float = 10.0, num_nodes: int = 1) -> None:
        """Log this machine's load under `system/...` every `interval` seconds until `close`."""
        if self._system is None:
            self._system = SystemMetrics(self._journal, interval, f"node_{self._node}" if num_nodes > 1 else None)
            self._system.start()

    def end(self, status: Literal["finished", "failed", "interrupted", "stopped"]) -> None:
        """The run is over, as far as this process knows."""
        if self._node == 0:
            self._journal.append("end", status=status)

    def flush(self) -> None:
        """Returns when every record so far is on the disk: a checkpoint may then say that its steps are logged.

        Waits for the disk alone and raises nothing.
        """
        self._journal.sync()

    def close(self, timeout: float = 10.0) -> int:
        """Send what is left for up to `timeout` seconds; returns how many records wait for `ditlab runs sync`."""
        if self._system is not None:
            self._system.stop()
        self._journal.close()
        return self._uploader.close(timeout)

    def __enter__(self) -> RunTracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _log_media(self, text: str, file: str, kind: Literal["artifact", "table"]) -> None:
        path = self.folder.media / file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(hide(text), encoding="utf-8")
            sync_file(path)
        except OSError as error:
            self._warn(f"{path} cannot be written ({error.strerror}), so MLflow does not get it")
            return
        parent = str(Path(file).parent)
        self._journal.append(
            kind, path=self._journal.relative(path), artifact_path=None if parent == "." else Path(parent).as_posix()
        )


def _copy(path: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    to = folder / path.name
    if path.is_dir():
        return Path(shutil.copytree(path, to, dirs_exist_ok=True))
    shutil.copy(path, to)
    sync_file(to)
    return to
