"""Shared fixtures of the tests: a keyed noise source, small specs, a network that counts its
calls.
"""

import hashlib
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ditlab_models.contract import Family, ModelSpec
from ditlab_models.families import families

SMALL_MODELS = {
    "dit": {"image_size": 8, "patch_size": 2, "width": 32, "depth": 2, "num_heads": 4},
    "unet": {"image_size": 8, "width": 16, "time_width": 16},
}


class KeyedNoise:
    """A noise source: numbers depend on the seed, the name and the row alone, so a slice gets its
    slice.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.names: list[str] = []

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.rand(tuple(shape), generator=self._generator(name))

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), generator=self._generator(name))

    def _generator(self, name: str) -> torch.Generator:
        self.names.append(name)
        key = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))


class Constant(nn.Module):
    """A network that predicts one value everywhere and records the batch size of every call."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))
        self.batch_sizes: list[int] = []

    def forward(self, x: Tensor, t: Tensor, label: Tensor | None = None) -> Tensor:
        self.batch_sizes.append(len(x))
        return self.value.expand_as(x)


def perturb(network: nn.Module, std: float = 0.05) -> None:
    """Move every parameter off its initial value, zeros included."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(std * torch.randn(parameter.shape, generator=generator).to(parameter))


@pytest.fixture(autouse=True)
def torch_seed() -> None:
    """Seed torch's global generator, from which weights are drawn."""
    torch.manual_seed(0)


@pytest.fixture
def noise() -> KeyedNoise:
    return KeyedNoise()


@pytest.fixture
def keyed_noise() -> type[KeyedNoise]:
    return KeyedNoise


@pytest.fixture
def constant_network() -> type[Constant]:
    return Constant


@pytest.fixture(name="perturb")
def perturb_fixture():
    return perturb


@pytest.fixture(params=["dit", "unet"])
def family(request: pytest.FixtureRequest) -> Family:
    return families()[request.param]


@pytest.fixture
def small(family: Family):
    """A small model spec of the family, with changes by keyword."""

    def make(**changes) -> ModelSpec:
        return family.model(**{**SMALL_MODELS[family.name], **changes})

    return make


@pytest.fixture
def batch() -> dict[str, Tensor]:
    """Eight 8x8 images in [-1, 1] with labels."""
    generator = torch.Generator().manual_seed(2)
    image = 2 * torch.rand(8, 1, 8, 8, generator=generator) - 1
    return {"image": image, "label": torch.arange(8)}
