"""The U-Net's exact parameter counts, and its parts."""

import torch
from torch.nn import functional
from torch.testing import assert_close

from ditlab_models.parameters import count_parameters
from ditlab_models.shape_trace import trace_shapes
from ditlab_models.unet.network import ResidualBlock
from ditlab_models.unet.spec import UNetObjectiveSpec, UNetSpec


def test_parameters_of_the_mnist_setting():
    count = count_parameters(UNetSpec(), UNetObjectiveSpec())
    assert count.total == count.trainable == 1_837_185
    assert count.components == {
        "time": 33_024,
        "conv_in": 640,
        "down": 513_664,
        "middle": 624_384,
        "up": 664_768,
        "head": 705,
    }


def test_classes_add_a_vector_each_and_one_for_the_null_class():
    assert count_parameters(UNetSpec(num_classes=10)).total == 1_837_185 + 11 * 128


def test_resolutions_halve_twice_and_are_restored():
    outputs = {row.path: row.outputs[0] for row in trace_shapes(UNetSpec(), batch_size=2)}
    assert outputs["down1"] == (2, 64, 28, 28)
    assert outputs["down2"] == (2, 128, 14, 14)
    assert outputs["middle1"] == outputs["middle2"] == (2, 128, 7, 7)
    assert outputs["up2"] == (2, 64, 14, 14)
    assert outputs["up1"] == (2, 64, 28, 28)


def test_residual_block_as_specified():
    block = ResidualBlock(16, 8, time_width=4).double()
    x, time = torch.randn(2, 16, 6, 6).double(), torch.randn(2, 4).double()
    h = functional.group_norm(block.conv1(x), 8, block.norm1.weight, block.norm1.bias)
    h = functional.silu(h + block.shift(functional.silu(time))[:, :, None, None])
    h = functional.group_norm(block.conv2(h), 8, block.norm2.weight, block.norm2.bias)
    assert_close(block(x, time), functional.silu(h + block.shortcut(x)))
