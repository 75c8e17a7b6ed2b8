"""Fixtures of the encoders' tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """These networks are too small for more threads to help."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    return write_text_encoder(tmp_path_factory.mktemp("encoders") / "text", width=32)


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    return write_image_encoder(
        tmp_path_factory.mktemp("encoders") / "image", width=24, patch=4, num_registers=3
    )
