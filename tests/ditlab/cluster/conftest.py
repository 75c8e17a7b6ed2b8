"""One Ray instance for all tests of the cluster room, and a home for each file."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import denoisers
from denoisers.families import families
from ditlab.cluster.session import ray_session
from ditlab.runs.start import Result, start_run
from ditlab.spec.experiment import Experiment
from support.faults import tracked
from support.unbroken import Unbroken, broken, checkpoint_of

PLUGINS = Path(__file__).parents[2] / "support" / "plugins"


@pytest.fixture
def breaking_family(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The family of `support/plugins`, in this process as in Ray's."""
    monkeypatch.setattr(denoisers, "__path__", [*denoisers.__path__, str(PLUGINS / "denoisers")])
    families.cache_clear()
    yield
    monkeypatch.undo()
    families.cache_clear()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Its workers find the families of `support/plugins` as well."""
    path = os.pathsep.join(filter(None, [str(PLUGINS), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with ray_session(None, num_cpus=2) as session:
            patch.undo()
            yield session


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DITLAB_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def unbroken(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    home = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(home))
        start = start_run(broken("unbroken"), None, local=False, remote=False, dry_run=False)
        result = start.go(local=False)
    return Unbroken(checkpoint_of(home, result.run_id), tracked(home, "unbroken")[0])


@pytest.fixture
def go(ray: Any, at_home: Path) -> Callable[..., Result]:
    """`go(experiment, resume=None)`: `ditlab train`, on the instance that is there."""

    def train(experiment: Experiment, resume: str | None = None) -> Result:
        return start_run(experiment, resume, local=False, remote=False, dry_run=False).go(local=False)

    return train
