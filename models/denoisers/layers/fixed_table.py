"""Tables that a network computes once and never trains, in full precision whatever the dtype of its weights."""

import torch
from torch import Tensor, nn


class FixedTable(nn.Module):
    """Table of float64 numbers, rounded to a dtype as it is read. No checkpoint holds it."""

    bits: Tensor

    def __init__(self, values: Tensor) -> None:
        """Keep `values`, float32 or better, on the default device."""
        super().__init__()
        # As integers: `network.bfloat16()` rounds floating-point buffers too, and `.double()` would not bring the
        # digits back. A cosine of a large position is then off by up to 2^-9.
        bits = values.to(torch.float64).contiguous().view(torch.int64)
        self.register_buffer("bits", bits.to(torch.get_default_device()), persistent=False)

    def values(self, dtype: torch.dtype) -> Tensor:
        """Return the table in `dtype`, on the network's device."""
        return self.bits.view(torch.float64).to(dtype)
