"""A parent of six steps with checkpoints at 3 and 6, copied for each test, and its fork without
changes.
"""

import shutil

import pytest

from ditlab.api.training import train
from ditlab.home import Home
from support.homes import settled
from support.trainings.forks import small


@pytest.fixture(scope="package")
def first_home(tmp_path_factory):
    """(home, id of the parent). Copy it, and leave it as it is."""
    root = tmp_path_factory.mktemp("parents")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(root))
        parent = train(small(name="base"), local=True, warn=print)
    return root, parent.run_id


@pytest.fixture
def home(tmp_path, monkeypatch, first_home):
    """A copy of that home as DITLAB_HOME."""
    root = _copied(first_home[0], tmp_path / "home")
    monkeypatch.setenv("DITLAB_HOME", str(root))
    return Home(root)


@pytest.fixture
def parent(first_home):
    """Id of the parent."""
    return first_home[1]


@pytest.fixture
def run(home):
    """`run(at="ID@STEP", **changes)` trains a fork in this process."""
    return train_fork


def train_fork(at=None, resume=None, weights_only=False, **changes):
    """Train a tiny fork in DITLAB_HOME."""
    experiment = small(**{"name": "fork", **changes})
    return train(
        experiment, local=True, resume=resume, start_from=at, weights_only=weights_only, warn=print
    )


@pytest.fixture(scope="package")
def family_home(tmp_path_factory, first_home):
    """(home, ids by name) of base@3 -> middle@6 -> last, and base@6 -> other. Copy it, and leave it
    as it is.
    """
    root = _copied(first_home[0], tmp_path_factory.mktemp("families") / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITLAB_HOME", str(root))
        found = {"base": first_home[1]}
        for name, at, steps, more in (
            ("middle", "base@3", 6, {"optimizer__lr": 3e-4}),
            ("last", "middle", 7, {"optimizer__lr": 3e-4}),
            ("other", "base@6", 1, {"weights_only": True}),
        ):
            found[name] = train_fork(at, name=name, training__steps=steps, **more).run_id
    return root, found


@pytest.fixture
def family(family_home, home):
    """Ids by name of the runs of `family_home`, which are in the home."""
    shutil.rmtree(home.root)
    _copied(family_home[0], home.root)
    return family_home[1]


def _copied(source, target):
    """Copy a home, so that the copy is one of its own."""
    shutil.copytree(source, target)
    settled(target)
    return target
