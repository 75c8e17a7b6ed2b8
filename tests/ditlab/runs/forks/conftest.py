"""A parent of six steps with checkpoints at 3 and 6, copied for each test, and its fork without changes."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ditlab.home import Home
from ditlab.interface.training import TrainingResult, train
from ditlab.spec.experiment import Experiment
from support.trainings.workers import tiny

SILENT = "http://127.0.0.1:9"
"""An MLflow server that does not answer: the journal keeps all."""

NewRun = Callable[..., TrainingResult]


def small(**changes: Any) -> Experiment:
    """`tiny` without MLflow."""
    return tiny(**{"tracking": {"system_metrics": False, "uri": SILENT, "report": False}, **changes})


@pytest.fixture(scope="package")
def first_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(home, id of the parent). Copy it, and leave it as it is."""
    root = tmp_path_factory.mktemp("parents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(root))
        parent = train(small(name="base"), local=True, warn=print)
    return root, parent.run_id


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_home: tuple[Path, str]) -> Home:
    """A copy of that home as DITLAB_HOME."""
    root = tmp_path / "home"
    shutil.copytree(first_home[0], root)
    (root / "places.json").unlink()
    monkeypatch.setenv("DITLAB_HOME", str(root))
    return Home(root)


@pytest.fixture
def parent(first_home: tuple[Path, str]) -> str:
    """Id of the parent."""
    return first_home[1]


@pytest.fixture
def run(home: Home) -> NewRun:
    """`run(at="ID@STEP", **changes)` trains a fork in this process."""

    def go(at: str | None = None, resume: str | None = None, weights_only: bool = False, **changes: Any) -> Any:
        experiment = small(**{"name": "fork", **changes})
        return train(experiment, local=True, resume=resume, start_from=at, weights_only=weights_only, warn=print)

    return go
