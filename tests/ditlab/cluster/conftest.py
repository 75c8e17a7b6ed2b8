"""Fixtures of tests that train on Ray: one Ray instance, a home for each file, one run that nothing
interrupts.
"""

import sys

import pytest

from ditlab.api.training import train
from support import databases
from support.clusters.faults import tracked
from support.clusters.unbroken import Unbroken, broken, checkpoint_of


def _warn(message):
    sys.stderr.write(f"warning: {message}\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory, mlflow_template):
    """A home with an MLflow database, for all tests of a file."""
    return databases.seed(tmp_path_factory.mktemp("home"), mlflow_template)


@pytest.fixture(scope="module")
def at_home(home):
    """The file's home as DITLAB_HOME."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def unbroken(ray, tmp_path_factory, mlflow_template):
    """A run of two Ray workers that nothing interrupts: what interrupted runs must come to."""
    home = databases.seed(tmp_path_factory.mktemp("unbroken"), mlflow_template)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(home))
        result = train(broken("unbroken"), warn=_warn)
    return Unbroken(checkpoint_of(home, result.run_id), tracked(home, "unbroken")[0])


@pytest.fixture
def go(ray, at_home):
    """`go(experiment, resume=None)` trains on the Ray instance of the session; warnings go to
    standard error.
    """

    def run(experiment, resume=None):
        return train(experiment, resume=resume, warn=_warn)

    return run
