"""A small region network and a batch of windows, one of them padded."""

import pytest
import torch
from torch import Tensor

from ditlab_models.region.spec import RegionSpec

SMALL = {
    "num_features": 7,
    "num_regions": 12,
    "width": 32,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "time_width": 16,
}


@pytest.fixture
def region_spec():
    """A small spec, with changes by keyword."""

    def make(**changes) -> RegionSpec:
        return RegionSpec(**{**SMALL, **changes})

    return make


@pytest.fixture
def windows() -> dict[str, Tensor]:
    """Four windows of 12 regions in float64; the last holds 9 regions and 3 of padding."""
    generator = torch.Generator().manual_seed(5)
    regions = torch.rand(4, 12, 7, generator=generator, dtype=torch.float64)
    present = torch.ones(4, 12, dtype=torch.bool)
    present[3, 9:] = False
    regions[~present] = 0
    return {"regions": regions, "present": present}
