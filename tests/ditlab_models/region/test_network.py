"""The region network's exact parameter counts, its symmetries, and its savings, which change no
number.
"""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.parameters import count_parameters
from ditlab_models.region.family import FAMILY
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec
from ditlab_models.shape_trace import trace_shapes
from ditlab_models.tensors import masked_rows, take_rows
from support.models.draws import seeded
from support.models.plain_region import plain_forward

CORRUPTIONS = ("mask", "ddpm")


@pytest.fixture
def made(region_spec, perturb):
    """A perturbed network in float64, with changes to its spec by keyword."""

    def make(**changes):
        network = FAMILY.build_network(region_spec(**changes)).double()
        perturb(network)
        return network

    return make


@pytest.fixture
def inputs(windows):
    """Regions, a mask of half of those that are present, and timesteps."""
    present = windows["present"]
    chance = torch.rand(present.shape, generator=seeded())
    return windows["regions"], (chance < 0.5) & present, torch.tensor([0, 3, 400, 999])


def test_parameters_of_the_published_setting():
    count = count_parameters(RegionSpec(), RegionObjectiveSpec())
    assert count.total == count.trainable == 128_767_003
    assert count.components == {
        "embedding": 218_112,
        "time": 787_968,
        "blocks": 12 * 10_628_352,
        "final_norm": 1_536,
        "head": 217_627,
        "tokens": 1_536,
    }
    assert count.training_only == {}


@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_no_parameter_depends_on_positions_or_on_the_number_of_regions(positions):
    assert count_parameters(RegionSpec(positions=positions, num_regions=200)).total == 128_767_003


def test_a_part_of_a_published_block():
    rows = {row.path: row for row in trace_shapes(RegionSpec(), batch_size=2)}
    assert rows["blocks.0"].inputs[0] == (2, 901, 768)
    assert rows["blocks.0.attention.qkv"].parameters == 1_771_776
    assert rows["blocks.0.attention.out"].parameters == 590_592
    assert rows["blocks.0.mlp"].parameters == 2_362_368 + 2_360_064
    assert rows["blocks.0.adaln"].parameters == 3_543_552
    assert rows["head"].outputs == [(2, 900, 283)]


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_untrained_blocks_are_the_identity_and_the_output_ignores_t(
    region_spec, inputs, corruption
):
    network = FAMILY.build_network(region_spec(corruption=corruption)).double()
    tokens, condition = torch.randn(2, 13, 32).double(), torch.randn(2, 32).double()
    for block in network.blocks:
        assert torch.equal(block(tokens, condition), tokens)
    x, mask, t = inputs
    assert torch.equal(network(x, mask, t), network(x, mask, torch.zeros_like(t)))


def test_initial_weights():
    """Encoder Linears: truncated normal of 0.02, zero bias; embedding and head: torch's default, 1
    / sqrt(inputs).
    """
    network = FAMILY.build_network(RegionSpec(depth=2, width=256, num_heads=4))
    for module in (
        network.time.hidden,
        network.time.out,
        network.blocks[0].attention.qkv,
        network.blocks[1].mlp.hidden,
    ):
        assert module.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert module.weight.abs().max() > 0.06  # a uniform of this deviation ends at 0.035
        assert not module.bias.any()
    for token in (network.tokens.mask, network.tokens.cls):
        assert token.std().item() == pytest.approx(0.02, rel=0.2)
    for block in network.blocks:
        assert not block.adaln.modulation.weight.any() and not block.adaln.modulation.bias.any()
    for module in (network.embedding, network.head):
        bound = module.in_features**-0.5
        assert module.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert module.bias.any()


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
@pytest.mark.parametrize("padded", [False, True])
def test_as_written_on_the_page(made, inputs, windows, corruption, positions, padded):
    network = made(corruption=corruption, positions=positions)
    present = windows["present"] if padded else None
    expected = plain_forward(network, *inputs, present)
    assert_close(network(*inputs, present), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_without_positions_it_is_permutation_equivariant(made, inputs, windows, corruption):
    network, (x, mask, t) = made(corruption=corruption), inputs
    order = torch.randperm(12, generator=seeded(2))
    moved = network(x[:, order], mask[:, order], t, windows["present"][:, order])
    assert_close(moved, network(x, mask, t, windows["present"])[:, order])


def test_without_positions_all_masked_regions_get_one_prediction(made, inputs, windows):
    """Without positions, masked regions are indistinguishable; the shipped small experiment has
    positions.
    """
    for positions, same in (("none", True), ("sinusoidal", False)):
        found = made(positions=positions)(*inputs, windows["present"])
        deviation = torch.stack([found[i][inputs[1][i]].std(0).max() for i in range(4)])
        assert bool((deviation < 1e-12).all()) == same


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_padding_changes_nothing(made, inputs, windows, corruption, positions):
    network, (x, mask, t) = made(corruption=corruption, positions=positions), inputs
    alone = network(x[3:, :9], mask[3:, :9], t[3:])[0]
    filled = torch.where(windows["present"][..., None], x, 1e6)
    for padded in (x, filled):
        assert_close(network(padded, mask, t, windows["present"])[3, :9], alone)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_savings_give_the_plain_predictions_and_gradients(
    made, inputs, windows, corruption, padded
):
    network, (x, mask, t) = made(corruption=corruption, positions="sinusoidal"), inputs
    present = windows["present"] if padded else None
    mask[1] = False  # a window without a masked region
    rows = masked_rows(mask)

    def gradients(prediction):
        errors = (prediction - take_rows(x, rows.index)).square() * rows.valid[..., None]
        return [errors.sum(), *torch.autograd.grad(errors.sum(), list(network.parameters()))]

    saved = gradients(network(x, mask, t, present, rows.index))
    plain = plain_forward(network, x, mask, t, present, network.time(t))
    plain = gradients(take_rows(plain, rows.index))
    assert_close(saved[0], plain[0], rtol=1e-7, atol=0)
    assert_close(saved, plain, rtol=1e-5, atol=1e-7)


def test_bf16_weights_and_autocast(made, inputs):
    x, mask, t = inputs
    x, network = x.float(), made(positions="sinusoidal").float()
    whole = network(x, mask, t)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(network(x, mask, t).float(), whole, rtol=0.1, atol=0.1)
    half = network.to(torch.bfloat16)(x.bfloat16(), mask, t)
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), whole, rtol=0.1, atol=0.1)
