"""Saved view of an experiment in MLflow's UI: columns by which a list of runs can be read, and the order of runs.

MLflow 3.17 keeps a view as a tag of the experiment, and opens it at an address that names the tag's key. It is made
once for each experiment: people may change or delete it there.
"""

from __future__ import annotations

import json
from typing import Any

from ditlab.tracking.names import VIEW
from ditlab.tracking.upload.images import LATEST, STEPS
from ditlab.tracking.upload.mlflow_errors import is_refusal

VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"

_COLUMNS = (
    "attributes.`Models`", "metrics.`run/parameters`", "metrics.`run/eval`", "metrics.`run/best_eval`",
    "metrics.`run/speed`", "metrics.`quality/frechet`", "metrics.`quality/agreement`", "tags.`ditlab.family`",
    "tags.`ditlab.status`", "tags.`ditlab.run`",
)  # fmt: skip
_IMAGE_SECTION = "ditlab-images"
_IMAGES = (f"samples/{LATEST}", f"samples/{STEPS}")


def view_value() -> str:
    """The tag's value: a saved view with a name, as MLflow's UI writes it, without compression."""
    cards = [
        {
            "uuid": f"ditlab-{number}", "type": "IMAGE", "runsCountToCompare": 10, "metricSectionId": _IMAGE_SECTION,
            "deleted": False, "isGenerated": True, "imageKeys": [key], "step": 0, "showRunParams": False,
        }
        for number, key in enumerate(_IMAGES)
    ]  # fmt: skip
    section = {"uuid": _IMAGE_SECTION, "name": "samples", "display": True, "isReordered": False}
    state = {
        "selectedColumns": list(_COLUMNS), "orderByKey": "attributes.start_time", "orderByAsc": False,
        "compareRunCharts": cards, "compareRunSections": [{**section, "deleted": False, "isGenerated": True}],
    }  # fmt: skip
    return json.dumps({"name": "DiTLab", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def ensure_view(client: Any, experiment: Any) -> None:
    """Give an existing experiment the view, unless it has one of this key."""
    if VIEW_TAG in experiment.tags:
        return
    try:
        client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, view_value())
    except Exception as error:
        if not is_refusal(error):
            raise
