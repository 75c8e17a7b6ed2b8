"""Constant tensors of losses and samplers, which no module holds."""

from collections.abc import Callable

import torch
from torch import Tensor


class Constant:
    """Tensor that is computed once, on the CPU, and copied once to every device and dtype that reads it.

    One made in each step would be a copy from pageable memory, in which the host waits for a GPU.
    """

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._compute = compute
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._values: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """The tensor itself, on the CPU."""
        if self._values is None:
            with torch.device("cpu"), torch.inference_mode(False), torch.no_grad():
                self._values = self._compute()
        return self._values

    def like(self, tensor: Tensor) -> Tensor:
        """Return the constant on a tensor's device, in its dtype."""
        return self.on(tensor.device, tensor.dtype)

    def on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the constant on a device, in a dtype: not to be written to."""
        key = (device, dtype)
        if key not in self._copies:
            with torch.inference_mode(False), torch.no_grad():
                self._copies[key] = self.values.to(device, dtype)
        return self._copies[key]
