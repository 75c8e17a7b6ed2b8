"""Fixtures of tests of training."""

import pytest


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home for all trainings of a file."""
    return tmp_path_factory.mktemp("home")
