"""MLflow as a backend of tracking: journal records as its calls. Sending a record twice leaves one
copy.

Pictures: `samples/samples-00000900.png` and `samples/latest.png` are for people, and sort. MLflow's
image card finds its pictures in `images/` by names that hold key, step and time, each as PNG and as
WebP, and opens at step 0: the level of chance. The newest picture is therefore an image of its own,
`samples/latest`, of step 0, before `samples/steps`.

Weights are a logged model: safetensors and a spec, no pickle and no Python function.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ditlab.errors import first_line
from ditlab.tracking.backend import Destination, NotReadyError, TrackingBackend, recorded_file
from ditlab.tracking.journal import JournalRecord
from ditlab.tracking.mlflow_connection import (
    connect,
    error_code,
    forget_artifact_folder,
    is_refusal,
)
from ditlab.tracking.mlflow_runs import (
    LATEST,
    RUN_TAG,
    STEPS,
    check_alive,
    find_mlflow_run,
    find_or_create_experiment,
    find_or_create_mlflow_run,
    search_models,
)
from ditlab.tracking.names import (
    FACTS_NAME,
    PARAM_LENGTH,
    TAG_LENGTH,
    artifact_image,
    as_count,
    is_shown,
    safe_image_key,
    safe_key,
    shorten,
)
from ditlab.tracking.notes import code, plain, with_addresses

WEIGHTS_NAME = "weights.safetensors"
NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow's UI shows as a run's description."""
OWN_TAG = "mlflow.ditlab.note"  # MLflow's pages hide tags of this prefix
"""Tag with the hashes of the last notes that DiTLab wrote: a note with another hash is a
person's.
"""
METRICS_PER_CALL = 500
"""The quickest size measured: 13,200 points a second, against 8,100 with 1000."""
ENTRIES_PER_CALL = 100
"""Parameters, and tags, that MLflow takes a call."""
_BYTES_PER_CALL = 500_000
"""Bytes of journal lines; MLflow takes 1 MB of JSON."""
_DIGEST_LENGTH = 36
"""Characters that MLflow keeps of a dataset's digest."""
_DATASET_NAME_LENGTH = 500
_STEP_TAG = "ditlab.step"
_STATUS = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


class MlflowBackend(TrackingBackend):
    """Sends records to one MLflow run. Every method raises what MLflow raises when it does not
    answer.
    """

    def __init__(self, client: Any, run_id: str, to: Destination) -> None:
        self.client = client
        self.run_id = run_id
        self.to = to
        self._clear_batch()

    @classmethod
    def connect(
        cls, to: Destination, start: JournalRecord | None, run_id: str | None
    ) -> MlflowBackend:
        """Find or make the MLflow run; one that is lost with its store is made again."""
        client = connect(to.uri, to.home)
        if run_id is not None:
            try:
                check_alive(client, run_id)
            except Exception as error:
                if not cls.is_missing(error):
                    raise
                run_id = None  # the store was made again
        if run_id is None:
            if start is None or to.node != 0:
                run_id = find_mlflow_run(client, to.folder.run_id)
                if run_id is None:
                    raise NotReadyError("node 0 makes the run")
            else:
                metric = start.get("metric", "")
                experiment = find_or_create_experiment(
                    client, start["experiment"], to.uri, to.home, metric
                )
                run_id = find_or_create_mlflow_run(client, experiment, start)
            check_alive(client, run_id)
        forget_artifact_folder(run_id)
        return cls(client, run_id, to)

    def add(self, record: JournalRecord, num_bytes: int) -> bool:
        """Take metrics, parameters or tags; return True where one call can hardly take more."""
        from mlflow.entities import Metric

        self._num_bytes += num_bytes
        values = {safe_key(key): value for key, value in record["values"].items()}
        match record["kind"]:
            case "params":
                for key, value in values.items():
                    self._params.setdefault(key, shorten(value, PARAM_LENGTH))
            case "tags":
                self._tags |= {
                    key: shorten(value, TAG_LENGTH)
                    for key, value in values.items()
                    if is_shown(key)
                }
            case _:
                time = record["time"]
                step = record["step"]
                self._metrics += [
                    Metric(key, float(value), time, step) for key, value in values.items()
                ]
        num_entries = max(len(self._params), len(self._tags))
        is_full = len(self._metrics) >= METRICS_PER_CALL or num_entries >= ENTRIES_PER_CALL
        return is_full or self._num_bytes > _BYTES_PER_CALL

    def flush(self) -> None:
        """Send the batch; a value that MLflow refuses is dropped with a warning, the others
        arrive.
        """
        from mlflow.entities import Param, RunTag

        entries: list[Any] = [RunTag(key, value) for key, value in self._tags.items()]
        entries += [Param(key, value) for key, value in self._params.items()]
        metrics = self._metrics
        self._clear_batch()
        for each, most in ((entries, ENTRIES_PER_CALL), (metrics, METRICS_PER_CALL)):
            for start in range(0, len(each), most):
                self._send_entries(each[start : start + most])

    def send(self, record: JournalRecord) -> None:
        """Send a record of another kind; a refused one, or one with an unusable file, is dropped
        with a warning.
        """
        path: Path | None = self.to.folder.path
        if "path" in record:
            path = recorded_file(self.to.folder, record, self.to.warn, "MLflow")
        if path is None:
            return
        try:
            self._send(record, path)
        except Exception as error:
            if not is_refusal(error):
                raise
            check_alive(self.client, self.run_id)
            self.to.warn(
                f"MLflow refused the {record['kind']} ({first_line(error)}); it stays in the "
                "journal only"
            )

    def nest(self, parent: str) -> bool:
        """Nest this run under another of ours, once MLflow has that one."""
        found = find_mlflow_run(self.client, parent)
        if found:
            self.client.set_tag(self.run_id, "mlflow.parentRunId", found)
        return bool(found)

    @staticmethod
    def is_missing(error: Exception) -> bool:
        """Return True if the run or its experiment does not exist: the store may have been made
        again.
        """
        return error_code(error) == "RESOURCE_DOES_NOT_EXIST"

    def _clear_batch(self) -> None:
        self._metrics: list[Any] = []
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._num_bytes = 0

    def _send_entries(self, entries: Sequence[Any]) -> None:
        """Send entries in one call; a refused call is repeated with halves of them, down to the
        entry at fault.
        """
        from mlflow.entities import Metric, Param, RunTag

        of = {kind: [e for e in entries if isinstance(e, kind)] for kind in (Metric, Param, RunTag)}
        try:
            self.client.log_batch(self.run_id, of[Metric], of[Param], of[RunTag], synchronous=True)
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(entries) == 1:
                check_alive(self.client, self.run_id)
                self.to.warn(
                    f"MLflow refused {entries[0].key} ({first_line(error)}); it stays in the "
                    "journal only"
                )
                return
            self._send_entries(entries[: len(entries) // 2])
            self._send_entries(entries[len(entries) // 2 :])

    def _send(self, record: JournalRecord, path: Path) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        place = record.get("artifact_path")
        match record["kind"]:
            case "start":
                # This changes nothing of a new run; a resumed one becomes active again. Node 0
                # alone sends it: another node's start may be sent after the run's end.
                if self.to.node == 0:
                    self.client.update_run(self.run_id, status="RUNNING")
            case "end":
                self.client.set_terminated(
                    self.run_id, _STATUS[record["status"]], end_time=record["time"]
                )
            case "artifact" if path.is_dir():
                self.client.log_artifacts(self.run_id, str(path), place)
            case "artifact":
                self.client.log_artifact(self.run_id, str(path), place)
            case "table":
                # As `log_table`, which appends to an existing file: sent again, it would double its
                # rows.
                self.client.log_artifact(self.run_id, str(path), place)
                entry = {"path": posixpath.join(place or "", path.name), "type": "table"}
                tables = json.loads(
                    self.client.get_run(self.run_id).data.tags.get("mlflow.loggedArtifacts", "[]")
                )
                if entry not in tables:
                    self.client.set_tag(
                        self.run_id, "mlflow.loggedArtifacts", json.dumps([*tables, entry])
                    )
            case "dataset":
                dataset = Dataset(
                    name=shorten(record["name"], _DATASET_NAME_LENGTH),
                    digest=record["fingerprint"][:_DIGEST_LENGTH],
                    source_type="local",
                    source=json.dumps({"uri": record["source"]}),
                    profile=json.dumps(record["counts"]),
                )
                tags = [InputTag("mlflow.data.context", record["context"])]
                self.client.log_inputs(self.run_id, [DatasetInput(dataset, tags)])
            case "image":
                self._send_image(record, path)
            case "note":
                self._send_note(path)
            case "model":
                self._send_model(record, path)

    def _send_image(self, record: JournalRecord, path: Path) -> None:
        """Send an image of a step; sent again, it replaces itself. Of an animation the last frame
        is the result.
        """
        from mlflow.tracking.multimedia import compress_image_size
        from PIL import Image

        try:
            with Image.open(path) as opened:
                opened.seek(getattr(opened, "n_frames", 1) - 1)
                image = opened.convert("RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            self.to.warn(f"{path} is no picture ({first_line(error)}), so MLflow does not get it")
            return
        key = record["key"]
        step = record["step"]
        name = safe_image_key(key)
        newest_tag = f"mlflow.ditlab.latest.{name}"
        tags = self.client.get_run(self.run_id).data.tags
        is_newest = (as_count(tags.get(newest_tag, "")) or 0) <= step
        pairs = [(f"{name}/{STEPS}", step, record["time"])]
        files = [artifact_image(key, step)]
        if is_newest:  # one name for all steps, and thus one file
            pairs.append((f"{name}/{LATEST}", 0, 0))
            files.append(artifact_image(key, None))
        with tempfile.TemporaryDirectory() as folder:
            for card, at, time in pairs:
                # The name by which MLflow's UI finds an image: the same at each call, where MLflow
                # draws a random one. The UI reads its step with leading zeros, by which files sort.
                unique = uuid.uuid5(
                    uuid.NAMESPACE_URL, f"ditlab:{self.to.folder.run_id}/{card}/{at}/{time}"
                )
                stem = f"{card.replace('/', '~')}+step+{at:08d}+timestamp+{time}+{unique}"
                for shown, suffix in (
                    (image, ".png"),
                    (compress_image_size(image), "+compressed.webp"),
                ):
                    shown.save(Path(folder, stem + suffix))
                    self.client.log_artifact(
                        self.run_id, str(Path(folder, stem + suffix)), "images"
                    )
            for place in files:
                file = Path(folder, posixpath.basename(place))
                image.save(file)
                self.client.log_artifact(self.run_id, str(file), posixpath.dirname(place))
        if is_newest:
            self.client.set_tag(self.run_id, newest_tag, str(step))
        self.client.set_tag(self.run_id, "mlflow.loggedImages", True)

    def _send_note(self, path: Path) -> None:
        """Write the run's note, unless a person wrote or emptied the one that is there, and upload
        the file of all tags. The hash is written first: a crash between the two leaves no note of
        ours that looks like a person's."""
        facts = path.with_name(FACTS_NAME)
        if facts.is_file():
            self.client.log_artifact(self.run_id, str(facts))
        try:
            text = path.read_bytes().decode(errors="replace")
        except OSError as error:
            self.to.warn(f"{path} cannot be read ({first_line(error)}), so MLflow does not get it")
            return
        run = self.client.get_run(self.run_id)
        tags = run.data.tags
        experiment_id = str(run.info.experiment_id)
        text = shorten(with_addresses(text, experiment_id, self.run_id), TAG_LENGTH)
        present = tags.get(NOTE_TAG)
        own = tags.get(OWN_TAG, "").split()
        if present == text or (present is not None and note_hash(present) not in own):
            return
        before = own[-1:]  # one that never arrived
        if present is not None:
            before = [note_hash(present)]
        self.client.set_tag(self.run_id, OWN_TAG, " ".join([*before, note_hash(text)]))
        self.client.set_tag(self.run_id, NOTE_TAG, text)

    def _send_model(self, record: JournalRecord, folder: Path) -> None:
        """Make or complete the model of a step: files, parameters, metrics, and the links to its
        run and data set.

        Where newer weights have replaced the files, a model that has none yet is not made: theirs
        has a record of its own. A server of MLflow before 3.0 keeps no logged models, and gets
        artifacts in `export`.
        """
        from mlflow.entities import LoggedModelOutput

        client = self.client
        step = record["step"]
        experiment_id = str(client.get_run(self.run_id).info.experiment_id)
        try:
            models = search_models(client, experiment_id, self.run_id)
        except Exception as error:
            if error_code(error) not in ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED"):
                raise
            client.log_artifacts(self.run_id, str(folder), "export")
            return
        found = [each for each in models if each.tags.get(_STEP_TAG) == str(step)]
        found.sort(
            key=lambda model: (not _is_ready(model), model.creation_timestamp, model.model_id)
        )
        for repeated in found[1:]:  # made by a request that was sent twice
            if not _is_ready(repeated):
                client.delete_logged_model(repeated.model_id)
        model = next(iter(found), None)
        if model is None or not _is_ready(model):
            if weights_step(folder / WEIGHTS_NAME) != step:
                return
            model = model or self._create_model(experiment_id, record)
            client.log_model_artifacts(model.model_id, str(folder))
            client.finalize_logged_model(model.model_id, "READY")
        # Name the model as an output of its run, once: MLflow would list a repeated call's twice.
        outputs = client.get_run(self.run_id).outputs
        if not outputs or model.model_id not in {each.model_id for each in outputs.model_outputs}:
            client.log_outputs(self.run_id, [LoggedModelOutput(model.model_id, step)])
        self._log_points(model.model_id, record)

    def _create_model(self, experiment_id: str, record: JournalRecord) -> Any:
        step = record["step"]
        name = record["name"]
        run_id = self.to.folder.run_id
        # written once, so that people may change it
        note = (
            f"Averaged weights of {plain(name)} after step {step:,}: safetensors, and the "
            "spec that rebuilds the network. Download the artifacts into a folder, then:\n\n"
        )
        note += code(["import ditlab", "model = ditlab.load_export(FOLDER)", "model.sample(16)"])
        return self.client.create_logged_model(
            experiment_id,
            name=re.sub(r"[/:.%\"'\x00-\x1f]+", "_", name)[:200].strip() or run_id,
            source_run_id=self.run_id,
            tags={
                RUN_TAG: run_id,
                _STEP_TAG: str(step),
                "ditlab.format": "safetensors",
                NOTE_TAG: note,
            },
            params={
                safe_key(key): shorten(value, PARAM_LENGTH)
                for key, value in record["params"].items()
            },
            model_type="diffusion",
        )

    def _log_points(self, model_id: str, record: JournalRecord) -> None:
        """Log the metrics of a model, with the data set that they are of."""
        from mlflow.entities import Metric

        of = {}
        data = record.get("dataset")
        if data:
            name = shorten(data["name"], _DATASET_NAME_LENGTH)
            of = {"dataset_name": name, "dataset_digest": data["fingerprint"][:_DIGEST_LENGTH]}
        points = [
            Metric(
                safe_key(each["name"]),
                each["value"],
                each["time"],
                each["step"],
                model_id=model_id,
                **of,
            )
            for each in record["points"]
        ]
        if points:
            self.client.log_batch(self.run_id, points, synchronous=True)


def _is_ready(model: Any) -> bool:
    return str(getattr(model.status, "value", model.status)) == "READY"


def weights_step(path: Path) -> int | None:
    """Training step of exported weights, from the head of their file; None for a file that says
    none.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return int(file.metadata()["step"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None


def note_hash(text: str) -> str:
    """Hash of a note, as the tag `OWN_TAG` holds it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
