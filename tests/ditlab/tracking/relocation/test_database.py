"""Paths in MLflow's database: every column that MLflow writes them to, one transaction, a backup."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.mlflow_connection import connect
from ditlab.tracking.relocation import PathMap, first_home, refers_to_former_places, relocating
from support import databases

OLD, NEW = "/old/runs", "/new/runs"
MOVED = PathMap((Path(OLD),), Path(NEW))


def run_sql(database: Path, sql: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(sql, values).fetchall()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Path:
    """A database with rows in the tables that hold artifact locations, made by MLflow's own client."""
    home = Home(databases.seed(tmp_path_factory.mktemp("home"), mlflow_template))
    client = connect(f"sqlite:///{home.mlflow_database}", home)
    experiment = client.create_experiment("mine", artifact_location=f"{OLD}/artifacts/mine")
    client.create_experiment("elsewhere", artifact_location="/somewhere/else")
    client.create_experiment("served", artifact_location="mlflow-artifacts:/3")
    run = client.create_run(experiment)
    client.log_param(run.info.run_id, "data.path", f"{OLD}/stores/x")
    client.create_logged_model(experiment)
    client.create_registered_model("model")
    client.create_model_version("model", f"file://{OLD}/artifacts/mine/m", run.info.run_id)
    return home.mlflow_database


@pytest.fixture
def database(tmp_path: Path, made: Path) -> Path:
    """A copy of it in a folder of its own."""
    return Path(shutil.copyfile(made, tmp_path / "mlflow.db"))


def test_every_location_is_mapped_and_nothing_else(database: Path) -> None:
    before = database.read_bytes()
    with relocating(database, MOVED) as done:
        assert done.backup is not None and done.backup.parent == database.parent
    assert done.changes == {
        "experiments.artifact_location": 1,
        "runs.artifact_uri": 1,
        "logged_models.artifact_location": 1,
        "model_versions.source": 1,
        "model_versions.storage_location": 1,
    }
    with closing(sqlite3.connect(database)) as connection:
        text = "\n".join(connection.iterdump())
    assert text.count(OLD) == 1 and f"'data.path','{OLD}/stores/x'" in text  # history stays
    assert "/somewhere/else" in text and "mlflow-artifacts:/3" in text
    assert f"file://{NEW}/artifacts/mine/m" in text
    with closing(sqlite3.connect(done.backup)) as connection, closing(sqlite3.connect(":memory:")) as was:
        was.deserialize(before)
        assert list(connection.iterdump()) == list(was.iterdump())
    with relocating(database, MOVED) as again:
        assert (again.num_changes, again.backup) == (0, None)


def test_every_table_of_mlflow_with_locations_is_known(database: Path) -> None:
    """A column of a later MLflow whose name tells of a location fails here, and is then looked at."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {f"{table}.{row[1]}" for table in tables for row in connection.execute(f"PRAGMA table_info({table})")}
    telling = {name for name in columns if any(word in name for word in ("location", "artifact_uri", "source", "path"))}
    assert telling == {
        "experiments.artifact_location", "runs.artifact_uri", "logged_models.artifact_location",
        "model_versions.source", "model_versions.storage_location", "workspaces.trace_archival_location",
        # no places of files: kinds, versions and ids; the data sets', history
        "runs.source_type", "runs.source_name", "runs.source_version", "datasets.dataset_source",
        "datasets.dataset_source_type", "assessments.source_type", "assessments.source_id", "inputs.source_type",
        "inputs.source_id", "entity_associations.source_type", "entity_associations.source_id",
        "evaluation_dataset_records.source", "evaluation_dataset_records.source_id",
        "evaluation_dataset_records.source_type", "endpoint_bindings.resource_type", "endpoint_bindings.resource_id",
        "issues.source_run_id", "logged_models.source_run_id", "mcp_server_versions.source",
    }  # fmt: skip


def test_traces_are_mapped(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        keys = ("mlflow.artifactLocation", "mlflow.trace.archiveLocation", "other")
        for key, request in zip(keys, "abc", strict=True):
            connection.execute(
                "INSERT INTO trace_tags (key, value, request_id) VALUES (?, ?, ?)", (key, f"{OLD}/artifacts/t", request)
            )
    with relocating(database, MOVED) as done:
        assert done.changes["trace_tags.value"] == 2
    found = run_sql(database, "SELECT request_id, value FROM trace_tags ORDER BY request_id")
    assert found == [("a", f"{NEW}/artifacts/t"), ("b", f"{NEW}/artifacts/t"), ("c", f"{OLD}/artifacts/t")]


def test_a_dry_run_writes_nothing(database: Path) -> None:
    before, files = database.read_bytes(), sorted(database.parent.iterdir())
    with relocating(database, MOVED, dry_run=True) as planned:
        assert (planned.num_changes, planned.backup) == (5, None)
    assert database.read_bytes() == before and sorted(database.parent.iterdir()) == files


def test_an_error_in_the_body_takes_everything_back(database: Path) -> None:
    before = run_sql(database, "SELECT artifact_location FROM experiments ORDER BY experiment_id")
    with pytest.raises(OSError, match="full"), relocating(database, MOVED):
        raise OSError(28, "the disk is full")
    assert run_sql(database, "SELECT artifact_location FROM experiments ORDER BY experiment_id") == before


def test_an_unknown_schema_is_refused(database: Path) -> None:
    run_sql(database, "UPDATE alembic_version SET version_num = 'f00dfeed0000'")
    before, files = database.read_bytes(), sorted(database.parent.iterdir())
    message = r"mlflow\.db has MLflow's schema f00dfeed0000, and only .* is known here"
    with pytest.raises(UserError, match=message), relocating(database, MOVED):
        pass
    assert database.read_bytes() == before and sorted(database.parent.iterdir()) == files


def test_a_database_in_use_is_refused(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ditlab.tracking.database_damage._TIMEOUT", 0.1)
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        message = r"locked.*end the MLflow server and the runs that use it"
        with pytest.raises(UserError, match=message), relocating(database, MOVED):
            pass


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    text, link, pipe = (tmp_path / name for name in ("text.db", "link.db", "pipe.db"))
    text.write_text("no database " * 500)
    link.symlink_to(text)
    os.mkfifo(pipe)
    kinds = ((text, "file is not a database"), (link, "a link"), (tmp_path, "a folder"), (pipe, "a named pipe"))
    for path, message in kinds:
        with pytest.raises(UserError, match=f"cannot be relocated .*{message}"), relocating(path, MOVED):
            pass
        assert first_home(path) is None and not refers_to_former_places(path, MOVED)
    with relocating(tmp_path / "none.db", MOVED) as done:
        assert done.num_changes == 0
    assert not (tmp_path / "none.db").exists()


def test_the_first_home_is_that_of_the_first_experiment(database: Path) -> None:
    run_sql(database, "UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", f"{OLD}/artifacts/0")
    assert first_home(database) == Path(OLD) and refers_to_former_places(database, MOVED)
    for other in ("mlflow-artifacts:/0", "/data/mlruns/0", "artifacts/0"):
        run_sql(database, "UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", other)
        assert first_home(database) is None
