"""Inputs that a network is called with, as a hook sees them."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def seen_inputs(
    network: nn.Module, is_wanted: Callable[[str, Tensor], bool]
) -> Iterator[list[Tensor]]:
    """Yield a list that gets the tensors which a network is called with inside, and which are
    wanted by name and value; call by call, in the order of the network's arguments."""
    seen: list[Tensor] = []
    signature = inspect.signature(network.forward)

    def see(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = signature.bind_partial(*inputs, **named).arguments
        seen.extend(
            each
            for name, each in given.items()
            if isinstance(each, Tensor) and is_wanted(name, each)
        )

    with network.register_forward_pre_hook(see, with_kwargs=True):
        yield seen
