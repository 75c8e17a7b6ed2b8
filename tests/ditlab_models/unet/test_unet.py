"""The parts of the U-Net."""

import torch
from torch.nn import functional
from torch.testing import assert_close

from ditlab_models.unet.network import ResidualBlock


def test_residual_block_as_specified():
    block = ResidualBlock(16, 8, time_width=4).double()
    x, time = torch.randn(2, 16, 6, 6).double(), torch.randn(2, 4).double()
    h = functional.group_norm(block.conv1(x), 8, block.norm1.weight, block.norm1.bias)
    h = functional.silu(h + block.shift(functional.silu(time))[:, :, None, None])
    h = functional.group_norm(block.conv2(h), 8, block.norm2.weight, block.norm2.bias)
    assert_close(block(x, time), functional.silu(h + block.shortcut(x)))
