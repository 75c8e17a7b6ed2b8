"""The gated feed-forward layer."""

import torch

from denoisers.layers.attention import SwiGLU


def test_parameters_have_no_biases():
    mlp = SwiGLU(512, 2048)
    assert sum(parameter.numel() for parameter in mlp.parameters()) == 3_145_728
    assert not any(name.endswith("bias") for name, _ in mlp.named_parameters())


def test_one_number():
    """down (SiLU(gate x) up x) with gate 2, up 3, down 5 at x = 0.5: SiLU(1) 1.5 5."""
    mlp = SwiGLU(1, 1).double()
    for layer, value in ((mlp.gate, 2.0), (mlp.up, 3.0), (mlp.down, 5.0)):
        torch.nn.init.constant_(layer.weight, value)
    expected = torch.sigmoid(torch.tensor([1.0]).double()) * 1.5 * 5
    torch.testing.assert_close(mlp(torch.tensor([0.5]).double()), expected)
