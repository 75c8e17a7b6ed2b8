"""One Ray instance for all tests of a session, whose processes find the families of
`support/plugins`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ditlab_models
from ditlab.cluster.session import ray_session

PLUGINS = Path(__file__).parents[1] / "plugins"


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Ray's module, connected; a second fixture of this name joins the instance of the first."""
    path = os.pathsep.join(filter(None, [str(PLUGINS), os.environ.get("PYTHONPATH")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        with ray_session(None, num_cpus=2) as session:
            patch.undo()
            yield session


@pytest.fixture
def breaking_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family of `support/plugins`, in this process as in Ray's."""
    monkeypatch.setattr(
        ditlab_models, "__path__", [*ditlab_models.__path__, str(PLUGINS / "ditlab_models")]
    )
