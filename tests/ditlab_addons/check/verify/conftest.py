"""A small run with receipts, averages and three checkpoints, and copies of it to damage."""

import shutil

import pytest

from ditlab import train
from support.trainings.forks import small


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A home with one run, resumed once."""
    home = tmp_path_factory.mktemp("verified") / "home"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DITLAB_HOME", str(home))
        experiment = small(
            training={"steps": 12, "averages": {}},
            checkpoint={"every": 4, "keep": 9},
            name="checked",
        )
        train(experiment, local=True)
    return home


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy of that home."""
    copied = tmp_path / "home"
    shutil.copytree(made, copied, symlinks=True)
    monkeypatch.setenv("DITLAB_HOME", str(copied))
    return copied
