"""A home with data for each test."""

import shutil

import pytest

from ditlab.data.splits import open_data
from ditlab.home import Home
from support import databases
from support.trainings.workers import tiny


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """The digits as a store, which takes a second to make."""
    home = Home(tmp_path_factory.mktemp("stores"))
    open_data(tiny().data, home)
    return home.stores


@pytest.fixture
def home(home, stores):
    """A DITLAB_HOME that holds the digits and no run."""
    found = Home(home)
    shutil.copytree(stores, found.stores)
    return found


@pytest.fixture
def tracked_home(home, mlflow_template):
    """The same with an MLflow database, for processes of Ray's, which would make one."""
    databases.seed(home.root, mlflow_template)
    return home
