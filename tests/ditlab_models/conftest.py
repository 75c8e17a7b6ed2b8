"""Fixtures of the tests of models: a seed, and small image models."""

import pytest
import torch

from ditlab_models.contract import Family, ModelSpec
from ditlab_models.families import families
from support.devices.variants import MODELS


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """Seed torch's global generator, from which weights are drawn."""
    torch.manual_seed(0)


@pytest.fixture(params=["dit", "unet"])
def family(request: pytest.FixtureRequest) -> Family:
    return families()[request.param]


@pytest.fixture
def small(family: Family):
    """A small model spec of the family, for images of 8x8, with changes by keyword."""

    def make(**changes) -> ModelSpec:
        return family.model(**{**MODELS[family.name], "image_size": 8, **changes})

    return make
