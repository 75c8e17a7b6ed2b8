"""Sending of exported weights to MLflow as a logged model: safetensors and a spec, no pickle and no Python function."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from ditlab.storage.plain_files import MIB, open_regular_file, parse_json
from ditlab.tracking.journal import JournalRecord
from ditlab.tracking.mlflow_connection import is_unknown_call
from ditlab.tracking.names import PARAM_LENGTH, safe_key, shorten
from ditlab.tracking.notes import code, plain

WEIGHTS_NAME = "weights.safetensors"
MODEL_TYPE = "diffusion"
FALLBACK_FOLDER = "export"
"""Folder of the run's artifacts for a server that keeps no logged models (MLflow before 3.0)."""
DIGEST_LENGTH = 36
"""Characters that MLflow keeps of a dataset's digest."""

_STEP_TAG, _RUN_TAG = "ditlab.step", "ditlab.run"
_NAME_LENGTH = 200
_LARGEST_WEIGHTS = 1 << 44
NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow's UI shows as a run's description."""
OWN_TAG = "ditlab.note"
"""Tag with the hashes of the last notes that DiTLab wrote: a note with another hash is a person's."""


def send_model(client: Any, mlflow_run_id: str, run_id: str, folder: Path, record: JournalRecord) -> None:
    """Make or complete the model of a step: files, parameters, metrics, and the links to its run and data set.

    Where newer weights have replaced the files, a model that has none yet is not made: theirs has a record of its own.
    """
    experiment_id = str(client.get_run(mlflow_run_id).info.experiment_id)
    try:
        model = _find(client, experiment_id, mlflow_run_id, record["step"])
    except Exception as error:
        if not is_unknown_call(error):
            raise
        client.log_artifacts(mlflow_run_id, str(folder), FALLBACK_FOLDER)
        return
    if model is None or not _is_ready(model):
        if weights_step(folder / WEIGHTS_NAME) != record["step"]:
            return
        model = model or _create(client, experiment_id, mlflow_run_id, run_id, record)
        client.log_model_artifacts(model.model_id, str(folder))
        client.finalize_logged_model(model.model_id, "READY")
    # Name the model as an output of its run, once: MLflow would list a repeated call's twice.
    from mlflow.entities import LoggedModelOutput

    outputs = client.get_run(mlflow_run_id).outputs
    linked = {each.model_id for each in outputs.model_outputs} if outputs else set()
    if model.model_id not in linked:
        client.log_outputs(mlflow_run_id, [LoggedModelOutput(model.model_id, record["step"])])
    _log_points(client, mlflow_run_id, model.model_id, record)


def delete_models(client: Any, experiment_id: str, mlflow_run_id: str) -> None:
    """Delete the models of a run."""
    for model in _search(client, experiment_id, mlflow_run_id):
        client.delete_logged_model(model.model_id)


def weights_step(path: Path) -> int | None:
    """Training step of exported weights, from the head of their file; None for a file that says none."""
    try:
        with open_regular_file(path, _LARGEST_WEIGHTS) as file:
            length = int.from_bytes(file.read(8), "little")
            head = parse_json(file.read(length)) if length < 64 * MIB else {}
        return int(head["__metadata__"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _find(client: Any, experiment_id: str, mlflow_run_id: str, step: int) -> Any | None:
    """The model of a step: a ready one first. Others, made by a repeated request, are deleted where they are empty."""
    found = [each for each in _search(client, experiment_id, mlflow_run_id) if each.tags.get(_STEP_TAG) == str(step)]
    found.sort(key=lambda model: (not _is_ready(model), model.creation_timestamp, model.model_id))
    for repeated in found[1:]:
        if not _is_ready(repeated):
            client.delete_logged_model(repeated.model_id)
    return found[0] if found else None


def _search(client: Any, experiment_id: str, mlflow_run_id: str) -> list[Any]:
    return list(client.search_logged_models([experiment_id], filter_string=f"source_run_id = '{mlflow_run_id}'"))


def _is_ready(model: Any) -> bool:
    return str(getattr(model.status, "value", model.status)) == "READY"


def _create(client: Any, experiment_id: str, mlflow_run_id: str, run_id: str, record: JournalRecord) -> Any:
    tags = {_RUN_TAG: run_id, _STEP_TAG: str(record["step"]), "ditlab.format": "safetensors", NOTE_TAG: _note(record)}
    name = re.sub(r"[/:.%\"'\x00-\x1f]+", "_", record["name"])[:_NAME_LENGTH].strip() or run_id
    return client.create_logged_model(
        experiment_id,
        name=name,
        source_run_id=mlflow_run_id,
        tags=tags,
        params={safe_key(key): shorten(value, PARAM_LENGTH) for key, value in record["params"].items()},
        model_type=MODEL_TYPE,
    )


def _note(record: JournalRecord) -> str:
    """How to use the weights; written once, so that people may change it."""
    return (
        f"Averaged weights of {plain(record['name'])} after step {record['step']:,}: safetensors, and the spec that "
        "rebuilds the network. Download the artifacts into a folder, then:\n\n"
        + code(["import ditlab", "model = ditlab.load_export(FOLDER)", "model.sample(16)"])
    )


def _log_points(client: Any, mlflow_run_id: str, model_id: str, record: JournalRecord) -> None:
    from mlflow.entities import Metric

    dataset = {}
    if data := record.get("dataset"):
        dataset = {"dataset_name": shorten(data["name"], 500), "dataset_digest": data["fingerprint"][:DIGEST_LENGTH]}
    points = [
        Metric(safe_key(point["name"]), point["value"], point["time"], point["step"], model_id=model_id, **dataset)
        for point in record["points"]
    ]
    if points:
        client.log_batch(mlflow_run_id, points, synchronous=True)


def send_note(client: Any, mlflow_run_id: str, text: str) -> bool:
    """Put a note on a run, unless a person wrote or emptied the one that is there; returns True if it is there now.

    The hash goes first, beside that of the note that it replaces: a crash between the two calls leaves a note that is
    still known as DiTLab's.
    """
    tags = client.get_run(mlflow_run_id).data.tags
    present = tags.get(NOTE_TAG)
    if present == text:
        return True
    if present is not None and note_hash(present) not in tags.get(OWN_TAG, "").split():
        return False
    if present is None and OWN_TAG in tags:
        hashes = [*tags[OWN_TAG].split()[-1:], note_hash(text)]  # one that never arrived
    else:
        hashes = [*([note_hash(present)] if present is not None else []), note_hash(text)]
    client.set_tag(mlflow_run_id, OWN_TAG, " ".join(hashes))
    client.set_tag(mlflow_run_id, NOTE_TAG, text)
    return True


def note_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
