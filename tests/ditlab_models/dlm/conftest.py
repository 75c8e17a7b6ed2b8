"""A small language model and sequences for it."""

import pytest
import torch
from torch import Tensor

from ditlab_models.dlm.family import FAMILY
from ditlab_models.dlm.spec import DLMSpec

SMALL = {
    "length": 12,
    "vocabulary": 11,
    "depth": 2,
    "num_heads": 2,
    "width": 16,
    "condition_width": 8,
    "time_width": 6,
}


@pytest.fixture
def small_dlm(perturb):
    """A perturbed network in float64, with changes to its spec by keyword."""

    def make(**changes):
        network = FAMILY.build_network(DLMSpec(**{**SMALL, **changes})).double()
        perturb(network, std=0.3)
        return network

    return make


@pytest.fixture
def tokens() -> Tensor:
    """Three sequences of 12 tokens out of 11, (3, 12) int64."""
    return torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(3))
