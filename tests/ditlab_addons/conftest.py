"""Fixtures of tests of add-ons."""

import shutil

import pytest

from support.homes import settled


@pytest.fixture
def own_home(finished, tmp_path, monkeypatch):
    """A copy of the finished run's home, without MLflow's database and caches, as DITLAB_HOME."""
    rest = shutil.ignore_patterns("mlflow.db*", "caches")
    home = settled(shutil.copytree(finished.home, tmp_path / "home", ignore=rest))
    monkeypatch.setenv("DITLAB_HOME", str(home.root))
    return home
