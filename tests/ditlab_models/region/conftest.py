"""A batch of windows, one of them padded."""

import pytest
import torch
from torch import Tensor

from support.models.draws import seeded


@pytest.fixture
def windows() -> dict[str, Tensor]:
    """Four windows of 12 regions in float64; the last holds 9 regions and 3 of padding."""
    regions = torch.rand(4, 12, 7, generator=seeded(5), dtype=torch.float64)
    present = torch.ones(4, 12, dtype=torch.bool)
    present[3, 9:] = False
    regions[~present] = 0
    return {"regions": regions, "present": present}
