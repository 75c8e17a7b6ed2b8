"""The pass over a chunk's log scores that costs memory traffic: one kernel on a GPU, in place elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

ExpLess = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


def exp_less(values: Tensor, less: Tensor, wants: bool) -> tuple[Tensor, Tensor | None]:
    """Row sums of e^values, (n, 1), and, if `wants`, e^values - less in the dtype of `values`.

    values: (n, V), overwritten where the device gains by it; less: (n, 1), float32 or better, in which all is computed.
    """
    return (_on_gpu if values.is_cuda else _plain)(values, less, wants)


def _plain(values: Tensor, less: Tensor, wants: bool) -> tuple[Tensor, Tensor | None]:
    e = values.to(less.dtype).exp_()
    total = e.sum(1, keepdim=True)
    return total, e.sub_(less).to(values.dtype) if wants else None


class Compiled:
    """`_plain` through torch.compile, which fuses it; as it is where that cannot be done (no Triton, no compiler)."""

    def __init__(self) -> None:
        self._function: ExpLess = torch.compile(_plain, dynamic=True) if find_spec("triton") else _plain

    def __call__(self, values: Tensor, less: Tensor, wants: bool) -> tuple[Tensor, Tensor | None]:
        try:
            return self._function(values, less, wants)
        except torch._dynamo.exc.TorchDynamoException:
            self._function = _plain  # it is compiled before it runs: `values` are what they were
            return _plain(values, less, wants)


_on_gpu = Compiled()
