"""The parts of the diffusion transformer."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTSpec
from support.models.draws import perturb
from support.models.figure_networks import DIT

SMALL = {**DIT, "patch_size": 2}


@pytest.mark.parametrize("changes", [{}, {"adaln": "zero"}, {"variance_channels": "unused"}])
def test_untrained_network_predicts_zero(changes):
    network = FAMILY.build_network(DiTSpec(num_classes=10, **SMALL, **changes))
    out = network(torch.randn(4, 1, 8, 8), torch.rand(4), torch.arange(4))
    assert torch.equal(out, torch.zeros(4, 1, 8, 8))


def test_untrained_adaln_zero_blocks_are_the_identity():
    network = FAMILY.build_network(DiTSpec(adaln="zero", **SMALL))
    tokens, condition = torch.randn(2, 16, 32), torch.randn(2, 128)
    for block in network.blocks:
        assert torch.equal(block(tokens, condition), tokens)


def test_block_without_gates_as_written_in_the_paper():
    """x + attention(modulated norm), then x + MLP(modulated norm)."""
    network = perturb(FAMILY.build_network(DiTSpec(**SMALL)).double())
    block = network.blocks[0]
    x, condition = torch.randn(2, 16, 32).double(), torch.randn(2, 128).double()
    expected = x
    for branch, modulation in zip(
        (block.attention, block.mlp), block.modulations(condition), strict=True
    ):
        normed = torch.nn.functional.layer_norm(expected, (32,))
        expected = expected + branch(
            normed * (1 + modulation.scale[:, None]) + modulation.shift[:, None]
        )
    assert_close(block(x, condition), expected)


def test_tokens_lie_in_memory_one_after_another():
    """Blocks keep the layout, and each norm would copy another one."""
    network = FAMILY.build_network(DiTSpec(**SMALL))
    assert network.embed(torch.zeros(3, 1, 8, 8)).is_contiguous()


@pytest.mark.parametrize("through", [torch.float32, torch.bfloat16])
def test_positions_of_a_double_network_have_all_digits(through):
    """Also where the network was cast to another dtype before."""
    network = FAMILY.build_network(DiTSpec(**SMALL)).to(through).double()
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    added = network.embed(x) - network.patch_embedding(x)
    exact = torch.tensor([position(index, 32) for index in range(16)], dtype=torch.float64)
    assert_close(added[0], exact, rtol=0, atol=2e-15)


def position(index, width):
    """Closed form of a row of the 4 x 4 table, in Python's float64."""
    quarter = width // 4
    omega = [10000 ** (-i / (quarter - 1)) for i in range(quarter)]
    row, column = divmod(index, 4)
    return [
        turn(at * each) for at in (row, column) for turn in (math.sin, math.cos) for each in omega
    ]


def test_with_patch_lines_keeps_every_pixel():
    from ditlab_models.figure_kinds.network import ENLARGEMENT, cut_patches, with_patch_lines

    picture = torch.rand(8, 8).numpy()
    lined = with_patch_lines(picture, 2)
    assert lined.shape == (8 * ENLARGEMENT + 3, 8 * ENLARGEMENT + 3, 3)
    assert (lined[:, 2 * ENLARGEMENT] == lined[0, 2 * ENLARGEMENT]).all()
    assert (lined[0, 0] == picture[0, 0]).all() and (lined[-1, -1] == picture[-1, -1]).all()
    assert (cut_patches(picture, 2)[5] == picture[2:4, 2:4]).all()
