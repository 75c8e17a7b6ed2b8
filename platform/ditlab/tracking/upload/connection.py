"""The connection to MLflow: its settings, its errors, experiments and runs by our own ids."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from ditlab.home import Home
from ditlab.tracking.address import is_server, sqlite_path
from ditlab.tracking.names import safe_folder

RUN_TAG = "ditlab.run"
"""Carries our run id; how a run is found again when only the server knows it."""
PARENT_TAG = "ditlab.parent"
"""Our id of the sweep that a trial belongs to; becomes `mlflow.parentRunId`."""

_SETTINGS = {
    # Two attempts of 15 s instead of eight of 120 s: the journal waits better than a blocked thread does.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    # Telemetry would keep an id in the user's home folder and talk to a third party.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

# The UI then shows runs and charts first, not the pages of language-model applications.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS"})
_NOISY = ("alembic", "mlflow.store.tracking.sqlalchemy_store")


class RunGoneError(Exception):
    """The run was deleted in MLflow; the journal keeps everything."""


def load() -> ModuleType:
    """mlflow, with our settings (the user's own environment variables win). Takes about 1.4 s the first time."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow

    for logger in _NOISY:
        logging.getLogger(logger).setLevel(logging.WARNING)
    # An outage is told once by us, not once a retry by urllib3, nor with a traceback where a database's disk is full.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    return mlflow


def connect(uri: str, home: Home) -> Any:
    """An `MlflowClient` for a resolved address. A local database is made where there is none (2 s)."""
    mlflow = load()
    if is_server(uri):
        return mlflow.MlflowClient(uri)
    with _one_at_a_time(uri):
        # Made here first, with our artifact root, as the client's own default is ./mlruns in the working directory.
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        if uri.startswith("sqlite:") and not sqlite_path(uri).exists():
            _make_database(sqlite_path(uri), home)
        SqlAlchemyStore(uri, str(home.artifacts))
    return mlflow.MlflowClient(uri)


def _make_database(path: Path, home: Home) -> None:
    """All tables or no file: a process killed among MLflow's fifty migrations would leave what none can go on from."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for left in path.parent.glob(f".{path.name}-*"):  # by a process that was killed here: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        whole = Path(folder, path.name)
        SqlAlchemyStore(f"sqlite:///{whole}", str(home.artifacts)).engine.dispose()
        whole.rename(path)


@contextmanager
def _one_at_a_time(uri: str) -> Iterator[None]:
    """MLflow makes its tables without a lock, so two trials that start together would break a new database."""
    if not uri.startswith("sqlite:"):
        yield
        return
    path = sqlite_path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_refusal(error: Exception) -> bool:
    """Whether MLflow answered that the data is wrong; anything else may pass and is tried again."""
    return getattr(error, "error_code", None) in _REFUSALS


def denial(error: Exception) -> int | None:
    """The HTTP status of an answer that refuses this process's name or password; None for any other error."""
    code = getattr(error, "error_code", None)
    status = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}.get(str(code))
    answer = getattr(error, "response", None)  # of an artifact's upload
    status = status or getattr(answer, "status_code", None)
    return status if status in (401, 403) else None


def is_missing(error: Exception) -> bool:
    return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"


def experiment_id(client: Any, name: str, uri: str, home: Home) -> str:
    """The experiment of this name, made if need be; its artifacts lie under DITLAB_HOME unless a server keeps them."""
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    location = None if is_server(uri) else str(home.artifacts / safe_folder(name))
    try:
        return str(client.create_experiment(name, artifact_location=location, tags=_EXPERIMENT_TAGS))
    except Exception as error:
        # Another process made it between the two calls.
        if getattr(error, "error_code", None) == "RESOURCE_ALREADY_EXISTS" and (
            found := client.get_experiment_by_name(name)
        ):
            return str(found.experiment_id)
        raise


def find_mlflow_run(client: Any, run_id: str, experiment: str | None = None) -> str | None:
    """MLflow's id of our run in an experiment, or in any; runs in the bin included."""
    found = _runs_of(client, run_id, experiment)
    return str(found[0].info.run_id) if found else None


def find_or_create_mlflow_run(client: Any, experiment: str, start: Mapping[str, Any]) -> str:
    """The MLflow run of a `start` record; a new one began when the record was written."""
    found = _runs_of(client, start["run_id"], experiment)
    if not found:
        tags = {RUN_TAG: start["run_id"], "ditlab.family": start["family"], "mlflow.source.name": "ditlab"}
        client.create_run(experiment, start_time=start["time"], run_name=start["name"], tags=tags)
        found = _runs_of(client, start["run_id"], experiment)
    # A request whose answer was lost is sent again by MLflow's client, and makes a second run.
    for twin in found[1:]:
        if not twin.data.metrics and twin.info.lifecycle_stage == "active":
            client.delete_run(twin.info.run_id)
    return str(found[0].info.run_id)


def _runs_of(client: Any, run_id: str, experiment: str | None) -> list[Any]:
    """MLflow's runs of ours: those in the bin last, empty ones before them."""
    from mlflow.entities import ViewType

    experiments = [experiment] if experiment else [each.experiment_id for each in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`{RUN_TAG}` = '{run_id}'", run_view_type=ViewType.ALL)
    return sorted(found, key=lambda r: (r.info.lifecycle_stage == "deleted", not r.data.metrics, r.info.run_id))


def check_alive(client: Any, mlflow_run_id: str) -> None:
    """Raises RunGoneError for a run that was moved to the bin, and MLflow's own error for one that does not exist."""
    if client.get_run(mlflow_run_id).info.lifecycle_stage == "deleted":
        raise RunGoneError(f"run {mlflow_run_id} was deleted in MLflow; restore it there to go on")
