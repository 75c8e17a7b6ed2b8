"""A home for each test, whose data are there already."""

import shutil
from pathlib import Path

import pytest

from ditlab.data.splits import open_data
from ditlab.home import Home
from support.threads import one_thread  # noqa: F401 (a fixture)
from support.workers import tiny


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as a store, which takes a second to make."""
    home = Home(tmp_path_factory.mktemp("stores"))
    open_data(tiny().data, home)
    return home.stores


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: Path) -> Home:
    """A DITLAB_HOME that holds no run."""
    found = Home(tmp_path / "home")
    shutil.copytree(stores, found.stores)
    monkeypatch.setenv("DITLAB_HOME", str(found.root))
    return found
