"""The diffusion transformer's exact parameter counts, and its parts."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.dit.family import FAMILY
from ditlab_models.dit.spec import DiTObjectiveSpec, DiTSpec
from ditlab_models.layers.embeddings import table_2d
from ditlab_models.parameters import count_parameters

SMALL = {"image_size": 8, "patch_size": 2, "width": 32, "depth": 2, "num_heads": 4}


def test_parameters_of_the_mnist_setting():
    count = count_parameters(DiTSpec(), DiTObjectiveSpec())
    assert count.total == count.trainable == 12_351_760
    assert count.components == {
        "patch_embedding": 4_352,
        "time": 1_312_768,
        "blocks": 6 * 1_838_336,
        "final_norm": 512,
        "head": 4_112,
    }
    assert count.training_only == {}


def test_parameters_with_adaln_zero():
    assert count_parameters(DiTSpec(adaln="zero")).total == 15_500_560


def test_classes_add_a_vector_each_and_one_for_the_null_class():
    count = count_parameters(DiTSpec(num_classes=10))
    assert count.components["label"] == 11 * 1024
    assert count.total == 12_351_760 + 11 * 1024


@pytest.mark.parametrize("adaln", ["scale_shift", "zero"])
def test_untrained_network_predicts_zero(adaln):
    network = FAMILY.build_network(DiTSpec(adaln=adaln, num_classes=10, **SMALL))
    out = network(torch.randn(4, 1, 8, 8), torch.rand(4), torch.arange(4))
    assert torch.equal(out, torch.zeros(4, 1, 8, 8))


def test_untrained_adaln_zero_blocks_are_the_identity():
    network = FAMILY.build_network(DiTSpec(adaln="zero", **SMALL))
    tokens, condition = torch.randn(2, 16, 32), torch.randn(2, 128)
    for block in network.blocks:
        assert torch.equal(block(tokens, condition), tokens)


@pytest.mark.parametrize("adaln", ["scale_shift", "zero"])
def test_block_as_written_in_the_paper(adaln, perturb):
    """x + gate attention(modulated norm), then x + gate MLP(modulated norm); the ungated block's
    gate is 1.
    """
    network = FAMILY.build_network(DiTSpec(adaln=adaln, **SMALL)).double()
    perturb(network)
    block = network.blocks[0]
    x, condition = torch.randn(2, 16, 32).double(), torch.randn(2, 128).double()
    expected = x
    for branch, modulation in zip(
        (block.attention, block.mlp), block.modulations(condition), strict=True
    ):
        normed = torch.nn.functional.layer_norm(expected, (32,))
        gate = modulation.gate[:, None] if adaln == "zero" else 1
        expected = expected + gate * branch(
            normed * (1 + modulation.scale[:, None]) + modulation.shift[:, None]
        )
    assert_close(block(x, condition), expected)


def test_positions_are_the_fixed_table_and_no_parameter():
    network = FAMILY.build_network(DiTSpec())
    assert torch.equal(network.positions.values(torch.float32), table_2d(7, 7, 256))
    assert not any("positions" in name for name in network.state_dict())


@pytest.mark.parametrize("through", [torch.float32, torch.bfloat16])
def test_positions_of_a_double_network_have_all_digits(through):
    """Also where the network was cast to another dtype before."""
    network = FAMILY.build_network(DiTSpec(**SMALL)).to(through).double()
    x = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    added = network.embed(x) - network.patch_embedding(x)
    exact = torch.tensor([position(index, 32) for index in range(16)], dtype=torch.float64)
    assert_close(added[0], exact, rtol=0, atol=2e-15)


def position(index: int, width: int) -> list[float]:
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
