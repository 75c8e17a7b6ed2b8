"""Fixtures of tests of figures on published networks."""

import pytest

from support.datasets.tiny_encoders import write_dinov2


@pytest.fixture(scope="session")
def dinov2(tmp_path_factory):
    """The folder of a tiny DINOv2."""
    return write_dinov2(tmp_path_factory.mktemp("networks") / "dinov2")
