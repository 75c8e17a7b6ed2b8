"""Network behind the engine's root module, and its tensors by name."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ditlab.engine.engine import Engine


class RootedNetwork(nn.Module):
    """Network that samplers and objectives call, entered through the engine's root module."""

    _engine: Engine
    _network: nn.Module

    def __init__(self, engine: Engine, network: nn.Module, tick: Callable[[], None]) -> None:
        super().__init__()
        # Past nn.Module's registry: the parameters belong to the engine's module.
        self.__dict__["_engine"], self.__dict__["_network"] = engine, network
        self._tick = tick

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self._tick()  # a sample grid may take longer than a worker may be silent
        return self._engine.network(*inputs, **named)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self._network.parameters(recurse)


def named_parameters(owners: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yield `owner.path` and parameter, for every parameter of every owner."""
    for prefix, owner in owners.items():
        for name, parameter in owner.named_parameters():
            yield f"{prefix}.{name}", parameter


def persistent_buffers(owners: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yield `owner.path` and buffer, for every buffer that belongs into a checkpoint."""
    for prefix, owner in owners.items():
        parameters = {name for name, _ in owner.named_parameters()}
        for name, value in owner.state_dict(keep_vars=True).items():
            if name not in parameters:
                yield f"{prefix}.{name}", value


def whole_shape(tensor: Any) -> torch.Size:
    """Return the shape of the whole tensor, whose local part ZeRO-3 leaves empty."""
    return getattr(tensor, "ds_shape", tensor.shape)
