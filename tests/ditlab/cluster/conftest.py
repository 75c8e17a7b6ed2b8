"""Fixtures of tests that train on Ray: one Ray instance, a home for each file, one run that nothing
interrupts.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ditlab.api.training import TrainingResult, train
from ditlab.spec.experiment import Experiment
from support import databases
from support.clusters.faults import tracked
from support.clusters.unbroken import Unbroken, broken, checkpoint_of


def _warn(message: str) -> None:
    sys.stderr.write(f"warning: {message}\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Path:
    """A home with an MLflow database, for all tests of a file."""
    return databases.seed(tmp_path_factory.mktemp("home"), mlflow_template)


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file's home as DITLAB_HOME."""
    monkeypatch.setenv("DITLAB_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def unbroken(ray: Any, tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Unbroken:
    """A run of two Ray workers that nothing interrupts: what interrupted runs must come to."""
    home, experiment = (
        databases.seed(tmp_path_factory.mktemp("unbroken"), mlflow_template),
        broken("unbroken"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(home))
        result = train(experiment, warn=_warn)
    return Unbroken(
        checkpoint_of(home, result.run_id), tracked(home, "unbroken")[0], experiment, home, result
    )


@pytest.fixture
def go(ray: Any, at_home: Path) -> Callable[..., TrainingResult]:
    """`go(experiment, resume=None)` trains on the Ray instance of the session; warnings go to
    standard error.
    """

    def run(experiment: Experiment, resume: str | None = None) -> TrainingResult:
        return train(experiment, resume=resume, warn=_warn)

    return run
