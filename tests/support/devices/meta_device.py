"""The meta device in the place of a GPU: tensors without values, whose every read and transfer is
seen.

Code that runs under `MetaDevice` takes no value of a tensor, which would wait for a GPU, moves
nothing unseen, and mixes no tensor of the host with those of the device.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOTS = tuple(str(Path(__file__).parents[3] / part) for part in ("models", "platform"))
ATEN = torch.ops.aten
META = torch.device("meta")
DATA_DEPENDENT = {
    ATEN.nonzero,
    ATEN.masked_select,
    ATEN.unique_consecutive,
    ATEN._unique2,
    ATEN.unique_dim,
    ATEN.bincount,
    ATEN.is_nonzero,
    ATEN.equal,
    ATEN.argwhere,
}
"""Operations whose result's shape, or whose result, is a value that the host waits for."""
DRAWS = {ATEN.rand, ATEN.randn, ATEN.randint}


class DeviceError(AssertionError):
    """A use of tensors that fails on a GPU, or waits for it."""


@dataclass(frozen=True)
class AllowedRead:
    """A read of values that is there for a reason."""

    reason: str
    answer: Callable[[Tensor], Any] = lambda tensor: True
    """Value in the place of the one that a tensor without values does not have."""


class MetaNoise:
    """Random numbers without values (`ditlab_models.contract.NoiseSource`)."""

    def uniform(self, name: str, shape: Sequence[int]) -> Tensor:
        return torch.empty(*shape, device="meta")

    normal = uniform


@dataclass
class Seen:
    """Places in the code, `file:function`, of what a GPU would have been asked for."""

    reads: list[str] = field(default_factory=list)
    """Reads of a value, and copies to the host."""
    transfers: list[str] = field(default_factory=list)
    """Copies from the host."""


class MetaDevice(TorchDispatchMode):
    """Watches every operation. Draws from a generator of the host give tensors of the device, as a
    GPU's own would.

    Of operations of a higher order, such as FlexAttention, the inputs alone are watched: they are
    kernels of their own.
    """

    supports_higher_order_operators = True

    def __init__(self, allowed: Mapping[str, AllowedRead]) -> None:
        super().__init__()
        self._allowed = allowed
        self.seen = Seen()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if isinstance(function, HigherOrderOperator):
            strays = [
                each
                for each in tree_leaves((args, kwargs))
                if isinstance(each, Tensor) and not each.is_meta
            ]
            if strays:
                raise DeviceError(f"{function} in {place()} takes tensors of the host")
            return function(*args, **kwargs)
        packet = function.overloadpacket
        if packet in DRAWS and _is_host_draw(kwargs):
            return function(*args, **{**kwargs, "device": META, "generator": None})
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if not any(each.is_meta for each in tensors):
            if _target(kwargs) == META and tensors:
                self.seen.transfers.append(place())
            return function(*args, **kwargs)
        if packet is ATEN._local_scalar_dense:
            return self._read(args[0])
        if packet is ATEN._to_copy and _target(kwargs) not in (None, META):
            return torch.full(
                args[0].shape, self._read(args[0]), dtype=kwargs.get("dtype") or args[0].dtype
            )
        if packet in DATA_DEPENDENT or (
            packet is ATEN.repeat_interleave and len(tensors) > 0 and _waits(args, kwargs)
        ):
            raise DeviceError(f"{function} in {place()} depends on values")
        if packet in (ATEN.index, ATEN.index_put, ATEN.index_put_) and _is_masked(args[1]):
            raise DeviceError(f"indexing by a mask in {place()} depends on values")
        strays = [tuple(each.shape) for each in tensors if not each.is_meta and each.ndim > 0]
        if packet is ATEN.copy_ and strays:
            self.seen.transfers.append(place())
        elif strays:
            raise DeviceError(
                f"{function} in {place()} mixes tensors of the host {strays} with those of the "
                "device"
            )
        return function(*args, **kwargs)

    def _read(self, tensor: Tensor) -> Any:
        here = place()
        if here not in self._allowed:
            raise DeviceError(
                f"{here} reads values of a tensor of the device, {tuple(tensor.shape)}"
            )
        self.seen.reads.append(here)
        return self._allowed[here].answer(tensor)


def _is_host_draw(kwargs: Mapping[str, Any]) -> bool:
    """True for numbers from a generator of the host, but for those that a GPU's sampler draws there
    as well.
    """
    generator = kwargs.get("generator")
    is_host = generator is not None and generator.device.type == "cpu"
    return is_host and place() != "processes/draws.py:seeded_normal"


def _target(kwargs: Mapping[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return None if device is None else torch.device(device)


def _waits(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True for `repeat_interleave` by a tensor of counts without a known sum."""
    counts = args[1] if len(args) > 1 else args[0]
    return isinstance(counts, Tensor) and kwargs.get("output_size") is None


def _is_masked(indices: Sequence[Tensor | None]) -> bool:
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)


def place() -> str:
    """`processes/solvers.py:heun`: the innermost function of the package on the stack."""
    frame: Any = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        for root in ROOTS:
            if path.startswith(root):
                name = re.sub(
                    r"[.]<(locals|listcomp|genexpr|dictcomp|lambda)>", "", frame.f_code.co_qualname
                )
                return f"{Path(path).relative_to(Path(root) / Path(path).relative_to(root).parts[0])}:{name}"
        frame = frame.f_back
    return "?"
