"""Fixtures of tests of add-ons."""

import shutil
from functools import partial

import pytest

from support.command import run_here
from support.homes import settled


@pytest.fixture
def cli(capfd, monkeypatch):
    """`ditlab ...` in this process, in whatever home DITLAB_HOME is."""
    return partial(run_here, capfd, monkeypatch)


@pytest.fixture
def own_home(finished, tmp_path, monkeypatch):
    """A copy of the finished run's home, without MLflow's database and caches, as DITLAB_HOME."""
    rest = shutil.ignore_patterns("mlflow.db*", "caches")
    home = settled(shutil.copytree(finished.home, tmp_path / "home", ignore=rest))
    monkeypatch.setenv("DITLAB_HOME", str(home.root))
    return home
