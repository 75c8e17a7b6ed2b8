"""Deletion of a run in MLflow."""

from __future__ import annotations

from ditlab.errors import UserError, first_line
from ditlab.home import Home
from ditlab.tracking.access import check_access, check_reachable
from ditlab.tracking.address import redact
from ditlab.tracking.upload.connection import connect
from ditlab.tracking.upload.mlflow_runs import find_mlflow_run
from ditlab.tracking.upload.models import delete_models


def delete_mlflow_run(run_id: str, address: str, home: Home) -> bool:
    """Mark our run as deleted at a resolved address; returns False where MLflow has no such run.

    MLflow keeps a deleted run until `mlflow gc`. Raises UserError where the address does not answer, or refuses.
    """
    if reason := check_reachable(address):
        if address.startswith("sqlite:"):
            return False
        raise UserError(
            f"tracking.uri={redact(address)} does not answer ({reason}), so run {run_id} cannot be deleted there; "
            "start that server, or delete the run without --mlflow."
        )
    if refusal := check_access(address):
        raise UserError(f"{refusal}.")
    try:
        client = connect(address, home)
        mlflow_run_id = find_mlflow_run(client, run_id)
        if mlflow_run_id is None:
            return False
        delete_models(client, str(client.get_run(mlflow_run_id).info.experiment_id), mlflow_run_id)
        client.delete_run(mlflow_run_id)
    except Exception as error:
        # MLflow's client and its database drivers raise errors of a dozen kinds.
        raise UserError(
            f"tracking.uri={redact(address)} does not delete run {run_id} ({first_line(error)}); delete it in MLflow's "
            "UI, and the run without --mlflow."
        ) from error
    return True
