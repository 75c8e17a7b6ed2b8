"""Experiments and runs in MLflow, found or made by our own ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ditlab.home import Home
from ditlab.tracking.address import is_server
from ditlab.tracking.names import safe_folder
from ditlab.tracking.upload.experiment_view import VIEW_TAG, ensure_view, view_value
from ditlab.tracking.upload.mlflow_errors import RunGoneError, already_exists

RUN_TAG = "ditlab.run"
"""Tag with our run id; finds a run again when only the server holds its MLflow id."""
PARENT_TAG = "ditlab.parent"
"""Tag with our id of the sweep that a trial belongs to; becomes `mlflow.parentRunId`."""

# The UI then shows runs and charts first, not the pages of language-model applications.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}


def find_or_create_experiment(client: Any, name: str, uri: str, home: Home) -> str:
    """MLflow's id of the experiment of this name; its artifacts lie under DITLAB_HOME unless a server keeps them."""
    if found := client.get_experiment_by_name(name):
        ensure_view(client, found)
        return str(found.experiment_id)
    location = None if is_server(uri) else str(home.artifacts / safe_folder(name))
    try:
        tags = {**_EXPERIMENT_TAGS, VIEW_TAG: view_value()}
        return str(client.create_experiment(name, artifact_location=location, tags=tags))
    except Exception as error:
        # Another process made it between the two calls.
        if already_exists(error) and (found := client.get_experiment_by_name(name)):
            return str(found.experiment_id)
        raise


def find_mlflow_run(client: Any, run_id: str) -> str | None:
    """MLflow's id of our run, deleted runs included; None where MLflow has none."""
    experiments = [each.experiment_id for each in client.search_experiments()]
    found = _search(client, run_id, experiments)
    return str(found[0].info.run_id) if found else None


def find_or_create_mlflow_run(client: Any, experiment: str, start: Mapping[str, Any]) -> str:
    """The MLflow run of a `start` record; a new one starts at the record's time."""
    found = _search(client, start["run_id"], [experiment])
    if not found:
        tags = {RUN_TAG: start["run_id"], "ditlab.family": start["family"], "mlflow.source.name": "ditlab"}
        client.create_run(experiment, start_time=start["time"], run_name=start["name"], tags=tags)
        found = _search(client, start["run_id"], [experiment])
    # A request whose answer was lost is sent again by MLflow's client, and makes a second run.
    for twin in found[1:]:
        if not twin.data.metrics and twin.info.lifecycle_stage == "active":
            client.delete_run(twin.info.run_id)
    return str(found[0].info.run_id)


def check_alive(client: Any, mlflow_run_id: str) -> None:
    """Raise RunGoneError for a run that was deleted, and MLflow's own error for one that does not exist."""
    if client.get_run(mlflow_run_id).info.lifecycle_stage == "deleted":
        raise RunGoneError(f"run {mlflow_run_id} was deleted in MLflow; restore it there to go on")


def _search(client: Any, run_id: str, experiments: list[str]) -> list[Any]:
    """MLflow's runs with our run id: deleted ones last, empty ones before them."""
    from mlflow.entities import ViewType

    found = client.search_runs(experiments, f"tags.`{RUN_TAG}` = '{run_id}'", run_view_type=ViewType.ALL)
    return sorted(found, key=lambda r: (r.info.lifecycle_stage == "deleted", not r.data.metrics, r.info.run_id))
