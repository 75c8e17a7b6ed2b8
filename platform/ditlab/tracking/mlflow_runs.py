"""Experiments, with a saved view, and runs in MLflow: found or made by our own ids, listed and
deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ditlab.home import Home
from ditlab.tracking.access import artifact_address, is_server
from ditlab.tracking.backend import RunGoneError
from ditlab.tracking.mlflow_connection import error_code
from ditlab.tracking.names import VIEW, safe_folder

RUN_TAG = "ditlab.run"
"""Tag with our run id; finds a run again when only the server holds its MLflow id."""
PARENT_TAG = "ditlab.parent"
"""Tag with our id of the sweep or group that a run belongs to; becomes `mlflow.parentRunId`."""
GROUP_TAG = "ditlab.group"
"""Tag with the id of the runs that differ in the seed alone."""
SEED_TAG = "ditlab.seed"
"""Tag with the seed of a run of a group."""

LATEST = "latest"
STEPS = "steps"
"""Names of the two image cards, in the section that the image's key names."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
_COLUMNS = (
    "metrics.`run/parameters`",
    "metrics.`run/gpu_hours`",
    "metrics.`run/core_hours`",
    "metrics.`quality/frechet`",
    "metrics.`quality/agreement`",
    "tags.`ditlab.changed`",
    "tags.`ditlab.status`",
    "tags.`ditlab.run`",
)
_IMAGE_SECTION = "ditlab-images"


def find_or_create_experiment(client: Any, name: str, uri: str, home: Home, metric: str) -> str:
    """MLflow's id of the experiment of this name. A new one has our saved view, with columns of its
    first run's main metric; its artifacts lie under DITLAB_HOME unless a server keeps them."""
    found = client.get_experiment_by_name(name)
    if found and found.lifecycle_stage == "deleted":
        raise _deleted_experiment(found)
    if found:
        return str(found.experiment_id)
    location = None
    if not is_server(uri):
        location = artifact_address(home.artifacts / safe_folder(name))
    # With its kind, the UI shows runs and charts first, not the pages of language-model
    # applications.
    tags = {"mlflow.experimentKind": "custom_model_development", VIEW_TAG: _view_value(metric)}
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=tags))
    except Exception as error:
        # Another process made it between the two calls.
        if error_code(error) == "RESOURCE_ALREADY_EXISTS" and (
            found := client.get_experiment_by_name(name)
        ):
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
        tags = {
            RUN_TAG: start["run_id"],
            "ditlab.family": start["family"],
            "mlflow.source.name": "ditlab",
        }
        client.create_run(experiment, start_time=start["time"], run_name=start["name"], tags=tags)
        found = _search(client, start["run_id"], [experiment])
    # A request whose answer was lost is sent again by MLflow's client, and makes a second run.
    for repeated in found[1:]:
        if not repeated.data.metrics and repeated.info.lifecycle_stage == "active":
            client.delete_run(repeated.info.run_id)
    return str(found[0].info.run_id)


def check_alive(client: Any, mlflow_run_id: str) -> None:
    """Raise RunGoneError for a run that was deleted, alone or with its experiment, and MLflow's own
    error for one that does not exist."""
    info = client.get_run(mlflow_run_id).info
    if info.lifecycle_stage != "deleted":
        return
    experiment = client.get_experiment(info.experiment_id)
    if experiment.lifecycle_stage == "deleted":
        raise _deleted_experiment(experiment)
    raise RunGoneError(
        f"run {mlflow_run_id} was deleted in MLflow; `mlflow runs restore --run-id "
        f"{mlflow_run_id}` restores it, and `ditlab runs sync` sends what waits"
    )


def _deleted_experiment(experiment: Any) -> RunGoneError:
    """Error for an experiment in MLflow's trash, whose name no other one can have."""
    return RunGoneError(
        f"experiment {experiment.name!r} was deleted in MLflow; `mlflow experiments restore "
        f"--experiment-id {experiment.experiment_id}` restores it, and `ditlab runs sync` "
        "sends what waits"
    )


def search_models(client: Any, experiment_id: str, mlflow_run_id: str) -> list[Any]:
    """The logged models of a run."""
    return list(
        client.search_logged_models(
            [experiment_id], filter_string=f"source_run_id = '{mlflow_run_id}'"
        )
    )


def _search(client: Any, run_id: str, experiments: list[str]) -> list[Any]:
    """MLflow's runs with our run id: deleted ones last, empty ones before them."""
    from mlflow.entities import ViewType

    found = client.search_runs(
        experiments, f"tags.`{RUN_TAG}` = '{run_id}'", run_view_type=ViewType.ALL
    )
    return sorted(
        found,
        key=lambda r: (r.info.lifecycle_stage == "deleted", not r.data.metrics, r.info.run_id),
    )


def _view_value(metric: str) -> str:
    """The tag's value: a saved view with a name, as MLflow's UI writes it, without compression."""
    own = [f"metrics.`{name}`" for name in ((f"best/{metric}", metric) if metric else ())]
    cards = [
        {
            "uuid": f"ditlab-{number}",
            "type": "IMAGE",
            "runsCountToCompare": 10,
            "metricSectionId": _IMAGE_SECTION,
            "deleted": False,
            "isGenerated": True,
            "imageKeys": [f"samples/{card}"],
            "step": 0,
            "showRunParams": False,
        }
        for number, card in enumerate((LATEST, STEPS))
    ]
    section = {"uuid": _IMAGE_SECTION, "name": "samples", "display": True, "isReordered": False}
    state = {
        "selectedColumns": [*own, *_COLUMNS],
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "compareRunCharts": cards,
        "compareRunSections": [{**section, "deleted": False, "isGenerated": True}],
    }
    return json.dumps(
        {"name": "DiTLab", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)}
    )
