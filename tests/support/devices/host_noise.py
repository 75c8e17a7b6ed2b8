"""Random numbers that do not depend on the device (`ditlab_models.contract.NoiseSource`)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ditlab_models.processes.draws import seeded_normal


class HostNoise:
    """Random numbers drawn on the CPU, the same by name for every device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        generator = torch.Generator().manual_seed(len(name) + sum(name.encode()))
        return torch.rand(tuple(shape), generator=generator).to(self._device)

    def normal(self, name: str, shape: Sequence[int]) -> Tensor:
        return seeded_normal([sum(name.encode())], shape)[0].to(self._device)
