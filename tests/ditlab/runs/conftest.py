"""A home with a short finished run, copied for each test."""

import shutil

import pytest

from ditlab.api.training import train
from support import databases
from support.homes import settled
from support.trainings.workers import tiny


@pytest.fixture(scope="package")
def finished_home(tmp_path_factory, mlflow_template):
    """A home that holds one run of two steps. Copy it, and leave it as it is."""
    home = databases.seed(tmp_path_factory.mktemp("finished"), mlflow_template)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(home))
        train(tiny(training__steps=2), local=True)
    return home


@pytest.fixture
def run_home(tmp_path, monkeypatch, finished_home):
    """A copy of that home as DITLAB_HOME."""
    root = tmp_path / "home"
    shutil.copytree(finished_home, root)
    monkeypatch.setenv("DITLAB_HOME", str(root))
    return settled(root)
