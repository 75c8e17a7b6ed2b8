"""Tracking addresses: valid forms, the meaning of null, and checks that import no mlflow."""

import re
import subprocess
import sys

import pytest

from ditlab.errors import UserError
from ditlab.home import Home
from ditlab.tracking.access import (
    artifact_address,
    check_reachable,
    redact,
    resolve_tracking_uri,
    sqlite_path,
    validate_tracking_uri,
)
from support.damage import refused

GOOD = [
    "http://127.0.0.1:5000",
    "https://mlflow.example.org",
    "https://user:secret@mlflow.example.org/prefix",
    "sqlite:///tracking.db",
    "sqlite:////data/with space/tracking.db",
    "postgresql://ditlab@db.example.org/mlflow",
    "mysql+pymysql://ditlab@db.example.org:3306/mlflow",
    "databricks",
    "databricks://profile",
]
BAD = [
    "",
    "http://",
    "http:///path",
    "http://:5000",
    "http://host:99999",
    "http://host:0",
    "http://ho st",
    "file:///tmp/mlruns",
    "mlruns",
    "sqlite:",
    "sqlite:///",
    "sqlite:///:memory:",
    "sqlite://host/file.db",
    "sqlite:////data/a?b.db",
    "sqlite+pysqlcipher:////data/a.db",
    "localhost:5000",
]


@pytest.mark.parametrize("uri", GOOD)
def test_a_well_formed_address_is_taken_as_it_is(uri):
    assert validate_tracking_uri(uri) == uri


@pytest.mark.parametrize("uri", BAD)
def test_a_malformed_address_is_refused_with_its_name_value_and_the_remedy(uri):
    with refused(rf"^tracking\.uri={re.escape(repr(uri))}.*sqlite:///PATH\.db"):
        validate_tracking_uri(uri)


def test_a_relative_database_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    resolved = resolve_tracking_uri("sqlite:///tracking.db", Home(tmp_path))
    assert resolved == f"sqlite:///{tmp_path}/tracking.db"
    assert resolve_tracking_uri(resolved, Home(tmp_path)) == resolved


@pytest.mark.parametrize(
    "name", ["C#", "a?b", "50%25", "100% x", "ü 🎈", "'q\"u' back\\slash", "&+;[br]*", "a@b:c"]
)
def test_every_folder_has_an_address_that_mlflow_reads_as_that_folder(tmp_path, monkeypatch, name):
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.db.utils import create_sqlalchemy_engine_with_retry

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    home = Home(tmp_path / name).ensure()
    address = resolve_tracking_uri(None, home)
    assert sqlite_path(address) == home.mlflow_database
    assert resolve_tracking_uri(address, home) == address
    engine = create_sqlalchemy_engine_with_retry(address)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE found (one)")
    engine.dispose()
    assert home.mlflow_database.stat().st_size and not list(work.iterdir())
    assert sorted(tmp_path.iterdir()) == sorted([work, home.root])
    repository = LocalArtifactRepository(artifact_address(home.artifacts))
    assert repository.artifact_dir == str(home.artifacts)


def test_a_plain_folders_addresses_are_its_path(tmp_path):
    home = Home(tmp_path / "Läufe (2026), a+b")
    assert resolve_tracking_uri(None, home) == f"sqlite:///{home.root}/mlflow.db"
    assert (
        resolve_tracking_uri("sqlite+pysqlite:////data/a%20b.db", home) == "sqlite:////data/a b.db"
    )
    assert artifact_address(home.artifacts) == str(home.artifacts)


def test_a_password_is_never_shown():
    assert redact("postgresql://ann:secret@db:5432/mlflow") == "postgresql://ann:***@db:5432/mlflow"
    with pytest.raises(UserError) as refusal:
        validate_tracking_uri("ftp://ann:secret@host")
    assert "secret" not in str(refusal.value)


def test_a_silent_address_says_why(tmp_path):
    assert check_reachable("http://127.0.0.1:9", 1) == "Connection refused"
    assert "no file" in (check_reachable(f"sqlite:///{tmp_path}/none.db") or "")


def test_no_module_imports_mlflow_before_it_is_needed():
    code = (
        "import importlib, pkgutil, sys, ditlab.tracking as room\n"
        "names = [found.name for found in pkgutil.walk_packages(room.__path__, 'ditlab.tracking.')]\n"
        # the program of MLflow's server, which no module imports
        "names.remove('ditlab.tracking.serve_mlflow')\n"
        "for name in names: importlib.import_module(name)\n"
        "print('mlflow' in sys.modules, len(names) > 15)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True"
