"""Row sums and shifted exponentials of log scores in one pass: one kernel on a GPU, in place elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

ExpMinus = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor | None]]


def exp_minus(values: Tensor, shift: Tensor, with_shifted: bool) -> tuple[Tensor, Tensor | None]:
    """Row sums of e^values, (n, 1), and, if `with_shifted`, e^values - shift in the dtype of `values`.

    values: (n, V), overwritten where that is faster; shift: (n, 1), float32 or better, the dtype of the computation.
    """
    return (_on_gpu if values.is_cuda else _plain)(values, shift, with_shifted)


def _plain(values: Tensor, shift: Tensor, with_shifted: bool) -> tuple[Tensor, Tensor | None]:
    e = values.to(shift.dtype).exp_()
    total = e.sum(1, keepdim=True)
    return total, e.sub_(shift).to(values.dtype) if with_shifted else None


class CompiledExpMinus:
    """`_plain` fused by torch.compile, or `_plain` itself where compilation fails (no Triton, no compiler)."""

    def __init__(self) -> None:
        self._function: ExpMinus | None = None

    def __call__(self, values: Tensor, shift: Tensor, with_shifted: bool) -> tuple[Tensor, Tensor | None]:
        if self._function is None:  # at the first call: torch.compile imports 3 s of modules
            self._function = torch.compile(_plain, dynamic=True) if find_spec("triton") else _plain
        try:
            return self._function(values, shift, with_shifted)
        except torch._dynamo.exc.TorchDynamoException:
            self._function = _plain  # compilation comes before the first run, so `values` are unchanged
            return _plain(values, shift, with_shifted)


_on_gpu = CompiledExpMinus()
