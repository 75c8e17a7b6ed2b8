"""An MLflow database with all its tables, made once a session: MLflow takes 2 to 7 s for them in
every new home.

`tests/conftest.py` offers the fixture `mlflow_template` to all tests; `seed` puts a copy into a
home.
"""

import fcntl
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ditlab.home import Home
from ditlab.tracking import mlflow_connection

REAL = mlflow_connection._make_database
"""MLflow's own way, which `tests/conftest.py` replaces by a copy of the template."""


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs, for all tests of the session: copy it, and leave it as it is."""
    return make_template(tmp_path_factory)


def make_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the session's database at the first call; returns its path."""
    own = tmp_path_factory.getbasetemp()
    # Parallel workers of one session have folders of their own in its folder.
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    template = folder / "mlflow-template.db"
    with template.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not template.exists():
            _make(template, own / "mlflow-template")
    return template


def seed(home: Path, template: Path) -> Path:
    """Give a home, made where it is missing, a copy of the template as its database; returns the
    home.
    """
    home.mkdir(parents=True, exist_ok=True)
    copy_template(template, Home(home).mlflow_database, Home(home))
    return home


def copy_template(template: Path, path: Path, home: Home) -> None:
    """Copy the template as a database of a home: its first experiment keeps its artifacts there, as
    MLflow makes it.
    """
    shutil.copyfile(template, path)
    with closing(sqlite3.connect(path)) as mlflow_connection, mlflow_connection:
        location = str(home.artifacts / "0")
        mlflow_connection.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", (location,)
        )


def _make(template: Path, root: Path) -> None:
    """A client's first connection to a home makes its database: the code that the tests are
    about.
    """
    home = Home(root).ensure()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlflow_connection, "_make_database", REAL)
        mlflow_connection.connect(f"sqlite:///{home.mlflow_database}", home)
    part = template.with_suffix(".part")
    shutil.copyfile(home.mlflow_database, part)
    part.rename(template)
