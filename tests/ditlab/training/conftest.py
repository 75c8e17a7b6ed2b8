"""Fixtures of tests of training."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for all trainings of a file."""
    return tmp_path_factory.mktemp("home")
