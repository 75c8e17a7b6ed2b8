"""Runs of DiTLab at an MLflow address."""

from __future__ import annotations

from dataclasses import dataclass

from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.tracking.access import require_access, require_reachable
from ditlab.tracking.address import redact, resolve_tracking_uri
from ditlab.tracking.upload.connection import connect
from ditlab.tracking.upload.mlflow_runs import RUN_TAG

_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted"}


@dataclass(frozen=True)
class MlflowRun:
    """A run of DiTLab on an MLflow server."""

    run_id: str
    """Our id; `mlflow_run_id` is MLflow's."""
    mlflow_run_id: str
    name: str
    family: str
    experiment: str
    status: str
    started: int
    """Milliseconds since 1970."""
    metrics: dict[str, float]
    """The latest value of each."""


def list_mlflow_runs(uri: str, home: Home, num: int) -> list[MlflowRun]:
    """The newest `num` runs of DiTLab at an address. Raises UserError where it is malformed or does not answer."""
    uri = resolve_tracking_uri(uri, home)
    require_reachable(uri)
    require_access(uri)
    try:
        client = connect(uri, home)
        experiments = {e.experiment_id: e.name for e in client.search_experiments()}
        runs = client.search_runs(
            list(experiments), f"tags.`{RUN_TAG}` LIKE '%'", max_results=num, order_by=["attributes.start_time DESC"]
        )
    except Exception as error:
        # Whatever stands at the address, MLflow's client and its database drivers raise errors of a dozen kinds.
        raise UserError(
            f"tracking.uri={redact(uri)} cannot be read as an MLflow store ({first_line(error)}); correct the address."
        ) from error
    return [
        MlflowRun(
            run_id=run.data.tags[RUN_TAG],
            mlflow_run_id=run.info.run_id,
            name=run.info.run_name,
            family=run.data.tags.get("ditlab.family", ""),
            experiment=experiments[run.info.experiment_id],
            status=_STATUS.get(run.info.status, run.info.status.lower()),
            started=run.info.start_time,
            metrics=dict(run.data.metrics),
        )
        for run in runs
    ]
