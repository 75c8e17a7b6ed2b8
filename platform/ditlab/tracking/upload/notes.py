"""Sending of a run's note to MLflow, never over what a person wrote there."""

from __future__ import annotations

import hashlib
from typing import Any

NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow's UI shows as a run's description."""
OWN_TAG = "ditlab.note"
"""Tag with the hashes of the last notes that DiTLab wrote: a note with another hash is a person's."""


def send_note(client: Any, mlflow_run_id: str, text: str) -> bool:
    """Put a note on a run, unless a person wrote or emptied the one that is there; returns True if it stands.

    The hash goes first, beside that of the note that it replaces: a crash between the two calls leaves a note that is
    still known as DiTLab's.
    """
    tags = client.get_run(mlflow_run_id).data.tags
    present = tags.get(NOTE_TAG)
    if present == text:
        return True
    if present is not None and _hash(present) not in tags.get(OWN_TAG, "").split():
        return False
    if present is None and OWN_TAG in tags:
        hashes = [*tags[OWN_TAG].split()[-1:], _hash(text)]  # one that never arrived
    else:
        hashes = [*([_hash(present)] if present is not None else []), _hash(text)]
    client.set_tag(mlflow_run_id, OWN_TAG, " ".join(hashes))
    client.set_tag(mlflow_run_id, NOTE_TAG, text)
    return True


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
