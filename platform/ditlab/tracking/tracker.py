"""Tracking of one run: everything about it goes into its journal, and from there to MLflow."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ditlab.home import Home, RunFolder
from ditlab.secrets import hide
from ditlab.storage.files import sync_file, write_durably
from ditlab.tracking.access import resolve_tracking_uri
from ditlab.tracking.backend import Warn
from ditlab.tracking.history import MAIN_TAG
from ditlab.tracking.journal_writer import JournalWriter
from ditlab.tracking.mlflow_runs import PARENT_TAG
from ditlab.tracking.names import FACTS_NAME, TAG_LENGTH, change_texts, differing, shorten
from ditlab.tracking.system_metrics import SystemMetrics
from ditlab.tracking.upload import BackgroundUploader, JournalTransfer

EndStatus = Literal["finished", "failed", "interrupted", "stopped"]

CATCH_UP_TIMEOUT = 30.0
"""Seconds that the end of a run waits for MLflow."""

_ADDRESSES = 1000
"""Characters of a note's limit that are left for MLflow's addresses."""

_log = logging.getLogger("ditlab.tracking")


class RunTracker:
    """Journal and upload of one run. No method waits for MLflow or raises its errors; any thread
    may call any method.

    Metrics are logged by `journal.log_metrics`, everything else by the methods here. A run that
    ended can be opened and logged to again (`ditlab evaluate`). `node` is the rank of the machine:
    node 0 makes the MLflow run; the others join it and need no `start`.
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
        is_held: bool = False,
    ) -> None:
        """Open the journal and start the upload. Raises UserError for a malformed address.

        Where it `is_held`, upload and system metrics, which import MLflow for 3 s, begin with
        `begin_upload`, or 10 seconds late. `warn` gets a line for each trouble with MLflow;
        `budget` is the spec's `tracking.budget`.
        """
        self.uri = resolve_tracking_uri(uri, home)
        self.folder = folder
        self._node = node
        show = warn or _log.warning
        self._warn: Warn = lambda message: show(hide(message))
        self.journal = JournalWriter(folder, node, budget, self._warn)
        self._system: SystemMetrics | None = None
        self._note = ("", "")
        self._begin = threading.Event()
        if not is_held:
            self._begin.set()
        self._transfer = JournalTransfer(
            folder, self.uri, home, self._warn, node, self.journal.sync
        )
        self._uploader = BackgroundUploader(self._transfer, self._begin)

    def begin_upload(self) -> None:
        """Begin the upload and the system metrics where they are held."""
        self._begin.set()

    @property
    def mlflow_run_id(self) -> str | None:
        """MLflow's id of this run, once it has been reached."""
        return self._transfer.cursor.mlflow_run_id

    def start(
        self,
        name: str,
        experiment: str,
        family: str,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Start or resume the run. `params` is a flattened spec; the tag `ditlab.parent` (a run id)
        nests a trial.
        """
        tags = {"ditlab.run": self.folder.run_id, **(tags or {})}
        fields = {"parent": PARENT_TAG, "metric": MAIN_TAG}
        known_tags = {field: tags[tag] for field, tag in fields.items() if tag in tags}
        known = self.journal.facts.params
        params = {key: hide(value) for key, value in (params or {}).items()}
        self.journal.append(
            "start",
            run_id=self.folder.run_id,
            name=name,
            experiment=experiment,
            family=family,
            **known_tags,
        )
        # others keep their first value
        new = {key: value for key, value in params.items() if key not in known}
        if new:
            self.journal.append("params", values=new)
        self.set_tags(tags)

    def resume_changes(
        self, params: Mapping[str, str], before: Mapping[str, str]
    ) -> dict[str, tuple[str, str]]:
        """Return old and new text of the parameters in which `params` differ from those that the
        journal knows to hold.

        `before` are those of the spec that a resume changes, with fields that came after the run's
        first start; empty where it changes none.
        """
        old = self.journal.facts.current_params
        if not old:
            return {}
        new = {key: hide(value) for key, value in params.items()}
        found = differing({**{key: hide(value) for key, value in before.items()}, **old}, new)
        return {path: pair for path, pair in found.items() if path in old or before}

    def log_resume(self, step: int, changes: Mapping[str, tuple[str, str]], rates: str) -> None:
        """Log what a resume changes after `step` steps, and what that does to the learning rate.

        Parameters never change in MLflow: the tag `ditlab.resume.1` of the first such resume says
        what holds since.
        """
        self.journal.append("resume", step=step, changes=dict(changes), rates=rates)
        text = "; ".join([*change_texts(changes), *filter(None, [rates])])
        self.set_tags(
            {f"ditlab.resume.{len(self.journal.facts.resumes)}": f"after step {step:,}: {text}"}
        )

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Log facts that may change; the last value counts."""
        if tags:
            self.journal.append(
                "tags", values={key: hide(str(value)) for key, value in tags.items()}
            )

    def log_image(self, key: str, step: int, path: Path) -> None:
        """Log a picture of a step, copied into the run's folder; an earlier one of this key and
        step stays.
        """
        if self.journal.has_image(key, step):
            return
        with self._keeping(path):
            if not path.absolute().is_relative_to(self.folder.path):
                self.folder.media.mkdir(parents=True, exist_ok=True)
                name = f"{key.replace('/', '-')}-{step:08d}{path.suffix}"
                path = Path(shutil.copy(path, self.folder.media / name))
            sync_file(path)
            self.journal.append("image", key=key, step=step, path=self.journal.relative_path(path))

    def log_artifact(self, path: Path, artifact_path: str | None = None) -> None:
        """Log a file or folder, for MLflow's folder `artifact_path`.

        It is read when it is sent: one in the run's folder must stay there; any other is copied
        into it.
        """
        with self._keeping(path):
            if not path.absolute().is_relative_to(self.folder.path):
                kept = self.folder.media / "artifacts" / (artifact_path or "") / path.name
                kept.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.copytree(path, kept, dirs_exist_ok=True)
                else:
                    shutil.copy(path, kept)
                    sync_file(kept)
                path = kept
            self.journal.append(
                "artifact", path=self.journal.relative_path(path), artifact_path=artifact_path
            )

    def log_text(
        self, text: str, file: str, kind: Literal["artifact", "table"] = "artifact"
    ) -> None:
        """Log text as an artifact; `file` may name a folder: `environment/packages.txt`."""
        path = self.folder.media / file
        parent = Path(file).parent.as_posix()
        with self._keeping(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, hide(text).encode())
            place = None if parent == "." else parent
            self.journal.append(kind, path=self.journal.relative_path(path), artifact_path=place)

    def log_table(self, data: Mapping[str, Sequence[Any]], file: str) -> None:
        """Log columns by name, of one length, as a table that MLflow's UI shows; `file` ends in
        `.json`.
        """
        rows = [list(row) for row in zip(*data.values(), strict=True)]
        table = {"columns": list(data), "index": list(range(len(rows))), "data": rows}
        self.log_text(json.dumps(table, default=str), file, "table")

    def log_note(self, text: str) -> None:
        """Log the note that MLflow shows with the run, as Markdown whose addresses
        `notes.with_addresses` fills in, and all tags as JSON, where either changed."""
        facts = json.dumps(self.journal.facts.tags, indent=1, sort_keys=True)
        if self._node or (text, facts) == self._note:
            return
        path = self.folder.media / "note.md"
        with self._keeping(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path.with_name(FACTS_NAME), facts.encode())
            write_durably(path, shorten(text, TAG_LENGTH - _ADDRESSES).encode())
            self.journal.append("note", path=self.journal.relative_path(path))
            self._note = (text, facts)

    def watch_system(self, interval: float = 10.0, num_nodes: int = 1) -> None:
        """Log this machine's load under `system/...` every `interval` seconds until `close`."""
        if self._system is None:
            node = None
            if num_nodes > 1:
                node = f"node_{self._node}"
            self._system = SystemMetrics(self.journal, interval, node, self._begin)

    def end(self, status: EndStatus) -> None:
        """Log the end of the run, and its status."""
        if self._node == 0:
            self.journal.append("end", status=status)

    def close(self, timeout: float = 10.0) -> int:
        """Send what is left for up to `timeout` seconds; returns how many records wait for `ditlab
        runs sync`.
        """
        if self._system is not None:
            self._system.stop()
        self.journal.close()
        self.num_unsent = self._uploader.close(timeout)
        return self.num_unsent

    def __enter__(self) -> RunTracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _keeping(self, path: Path) -> Iterator[None]:
        """Warn where the disk refuses a file for MLflow: its record is then not written."""
        try:
            yield
        except OSError as error:
            self._warn(f"{path} cannot be kept ({error.strerror}), so MLflow does not get it")
