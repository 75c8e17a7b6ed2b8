"""Sequences for a small language model."""

import pytest
import torch

from support.models.draws import seeded


@pytest.fixture
def tokens() -> torch.Tensor:
    """Three sequences of 12 tokens out of 11, (3, 12) int64."""
    return torch.randint(11, (3, 12), generator=seeded(3))
