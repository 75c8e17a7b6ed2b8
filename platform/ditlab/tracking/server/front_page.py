"""The page at which a reviewer begins: the experiment of the newest run, with columns by which its list can be read."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from ditlab.storage.plain_files import MIB, parse_json
from ditlab.tracking.names import experiment_page
from ditlab.tracking.upload.experiment_view import VIEW_TAG, view_value

_MOST_EXPERIMENTS = 1000
_TIMEOUT = 20.0
"""Seconds for an answer of a server that has just started."""


def front_page(url: str, authorization: str | None = None) -> str | None:
    """Address of the newest run's experiment, in its saved view, at a server that runs; None where it has no runs.

    An experiment of earlier versions, which has no such view yet, is given it.
    """
    try:
        found = _call(url, "experiments/search", {"max_results": _MOST_EXPERIMENTS}, authorization)
        experiments = {each["experiment_id"]: each for each in found.get("experiments", [])}
        query = {"experiment_ids": list(experiments), "max_results": 1, "order_by": ["attributes.start_time DESC"]}
        runs = _call(url, "runs/search", query, authorization).get("runs", []) if experiments else []
        if not runs:
            return None
        experiment = experiments[runs[0]["info"]["experiment_id"]]
        number = str(experiment["experiment_id"])
        if all(tag["key"] != VIEW_TAG for tag in experiment.get("tags", [])):
            tag = {"experiment_id": number, "key": VIEW_TAG, "value": view_value()}
            _call(url, "experiments/set-experiment-tag", tag, authorization)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # another server's answers; its first page is named then
    return f"{url}/{experiment_page(number)}"


def _call(url: str, name: str, body: dict[str, Any], authorization: str | None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/api/2.0/mlflow/{name}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        found: dict[str, Any] = parse_json(answer.read(16 * MIB))
    return found
