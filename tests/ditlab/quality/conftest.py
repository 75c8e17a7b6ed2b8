"""A home for each module, and classifiers of few steps."""

import pytest

from ditlab.home import Home
from ditlab.quality import classifier


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classifier, "STEPS", 20)
