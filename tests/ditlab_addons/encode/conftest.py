"""Fixtures of tests of columns of encoders."""

import pytest

from ditlab.home import Home
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DITLAB_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory):
    return write_text_encoder(tmp_path_factory.mktemp("encoders") / "text", width=32)


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    return write_image_encoder(
        tmp_path_factory.mktemp("encoders") / "image", width=24, patch=4, num_registers=3
    )
