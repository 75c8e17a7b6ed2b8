"""The region network: its start, its page, and its savings, which change no number."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.region.family import FAMILY
from ditlab_models.region.spec import RegionSpec
from ditlab_models.tensors import masked_rows, take_rows
from support.models.draws import perturb, seeded
from support.models.plain_region import plain_forward
from support.models.small_networks import region_spec

CORRUPTIONS = ("mask", "ddpm")


def made(**changes):
    """A perturbed network in float64, with changes to its spec."""
    return perturb(FAMILY.build_network(region_spec(**changes)).double())


@pytest.fixture
def inputs(windows):
    """Regions, a mask of half of those that are present, and timesteps."""
    present = windows["present"]
    chance = torch.rand(present.shape, generator=seeded())
    return windows["regions"], (chance < 0.5) & present, torch.tensor([0, 3, 400, 999])


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
def test_as_written_on_the_page(inputs, windows, corruption, positions, padded):
    network = made(corruption=corruption, positions=positions)
    x, mask, t = inputs
    present = windows["present"] if padded else None
    x = torch.where(windows["present"][..., None], x, 9.0)  # what padding holds
    expected = plain_forward(network, x, mask, t, present)
    assert_close(network(x, mask, t, present), expected, rtol=1e-6, atol=1e-7)


def test_without_positions_all_masked_regions_get_one_prediction(inputs, windows):
    """Without positions, masked regions are indistinguishable; the shipped small experiment has
    positions.
    """
    for positions, same in (("none", True), ("sinusoidal", False)):
        found = made(positions=positions)(*inputs, windows["present"])
        deviation = torch.stack([found[i][inputs[1][i]].std(0).max() for i in range(4)])
        assert bool((deviation < 1e-12).all()) == same


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_savings_give_the_plain_predictions_and_gradients(inputs, windows, corruption, padded):
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
