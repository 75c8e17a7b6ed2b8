"""Several linear maps of one input in one product."""

from torch import nn


class FusedLinear(nn.Linear):
    """Linear whose weight consists of `fused_parts` maps of equal size: the rows of the first, then of the second ...

    An optimiser that works on matrices takes them one by one.
    """

    def __init__(self, inputs: int, outputs: int, fused_parts: int, bias: bool = True) -> None:
        assert outputs % fused_parts == 0, f"{outputs} outputs do not split into {fused_parts} maps"
        super().__init__(inputs, outputs, bias=bias)
        self.fused_parts = fused_parts
