"""A home with a file of every kind, made once a session, and a copy of it that may be damaged."""

import pytest

from support.damaged.home import complete, copied, copied_home


@pytest.fixture(scope="session")
def made(finished, tmp_path_factory):
    """Read it only: every test of the session shares it."""
    root = tmp_path_factory.mktemp("damaged") / "home"
    copied_home(finished.home, root)
    return complete(root, finished.run_id)


@pytest.fixture
def one(made, tmp_path, monkeypatch):
    """A home of one test's own."""
    found = copied(made, tmp_path / "home")
    monkeypatch.setenv("DITLAB_HOME", str(found.home.root))
    return found
