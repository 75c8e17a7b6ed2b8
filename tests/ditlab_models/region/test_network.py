"""The region network's exact parameter counts, its symmetries, and its savings, which change no
number.
"""

import pytest
import torch

from ditlab_models.parameters import count_parameters
from ditlab_models.region.family import FAMILY
from ditlab_models.region.spec import RegionObjectiveSpec, RegionSpec
from ditlab_models.shape_trace import trace_shapes
from ditlab_models.tensors import masked_rows, take_rows
from support.models.plain_region import plain_forward

CORRUPTIONS = ("mask", "ddpm")


def some_mask(windows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(windows["present"].shape, generator=generator) < 0.5) & windows["present"]


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
    region_spec, windows, corruption
):
    network = FAMILY.build_network(region_spec(corruption=corruption)).double()
    tokens, condition = torch.randn(2, 13, 32).double(), torch.randn(2, 32).double()
    for block in network.blocks:
        assert torch.equal(block(tokens, condition), tokens)
    x, mask = windows["regions"], some_mask(windows)
    early = network(x, mask, torch.zeros(4, dtype=torch.int64))
    late = network(x, mask, torch.tensor([1, 10, 500, 999]))
    assert torch.equal(early, late)


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
def test_as_written_on_the_page(region_spec, windows, perturb, corruption, positions, padded):
    network = FAMILY.build_network(region_spec(corruption=corruption, positions=positions)).double()
    perturb(network)
    x, mask, t = windows["regions"], some_mask(windows), torch.tensor([0, 3, 400, 999])
    present = windows["present"] if padded else None
    torch.testing.assert_close(
        network(x, mask, t, present),
        plain_forward(network, x, mask, t, present),
        rtol=1e-6,
        atol=1e-7,
    )


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_without_positions_it_is_permutation_equivariant(region_spec, windows, perturb, corruption):
    network = FAMILY.build_network(region_spec(corruption=corruption)).double()
    perturb(network)
    x, mask, t = windows["regions"], some_mask(windows), torch.tensor([0, 3, 400, 999])
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    moved = network(x[:, order], mask[:, order], t, windows["present"][:, order])
    torch.testing.assert_close(moved, network(x, mask, t, windows["present"])[:, order])


def test_with_positions_it_is_not(region_spec, windows, perturb):
    network = FAMILY.build_network(region_spec(positions="sinusoidal")).double()
    perturb(network)
    x, mask, t = windows["regions"], some_mask(windows), torch.zeros(4, dtype=torch.int64)
    moved = network(x.flip(1), mask.flip(1), t).flip(1)
    assert not torch.allclose(moved, network(x, mask, t), atol=1e-3)


def test_without_positions_all_masked_regions_get_one_prediction(region_spec, windows, perturb):
    """Without positions, masked regions are indistinguishable; the shipped small experiment has
    positions.
    """
    x, mask, t = windows["regions"], some_mask(windows), torch.zeros(4, dtype=torch.int64)
    for positions, same in (("none", True), ("sinusoidal", False)):
        network = FAMILY.build_network(region_spec(positions=positions)).double()
        perturb(network)
        found = network(x, mask, t, windows["present"])
        deviation = torch.stack([found[i][mask[i]].std(0).max() for i in range(4)])
        assert bool((deviation < 1e-12).all()) == same


def test_what_a_masked_region_held_changes_nothing(region_spec, windows, perturb):
    network = FAMILY.build_network(region_spec()).double()
    perturb(network)
    x, mask, t = windows["regions"], some_mask(windows), torch.zeros(4, dtype=torch.int64)
    other = torch.where(mask[..., None], torch.full_like(x, 1e6), x)
    assert torch.equal(
        network(x, mask, t, windows["present"]), network(other, mask, t, windows["present"])
    )


def test_under_ddpm_it_matters(region_spec, windows, perturb):
    network = FAMILY.build_network(region_spec(corruption="ddpm")).double()
    perturb(network)
    x, mask, t = windows["regions"], some_mask(windows), torch.zeros(4, dtype=torch.int64)
    assert not torch.allclose(network(x, mask, t), network(x + mask[..., None], mask, t), atol=1e-3)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("positions", ["none", "sinusoidal"])
def test_padding_changes_nothing(region_spec, windows, perturb, corruption, positions):
    network = FAMILY.build_network(region_spec(corruption=corruption, positions=positions)).double()
    perturb(network)
    x, mask, t = windows["regions"], some_mask(windows), torch.tensor([0, 3, 400, 999])
    whole = network(x, mask, t, windows["present"])[3, :9]
    alone = network(x[3:, :9], mask[3:, :9], t[3:])[0]
    torch.testing.assert_close(whole, alone)
    filled = x.clone()
    filled[3, 9:] = 1e6
    torch.testing.assert_close(network(filled, mask, t, windows["present"])[3, :9], alone)


@pytest.mark.parametrize("corruption", CORRUPTIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_savings_give_the_plain_predictions_and_gradients(
    region_spec, windows, perturb, corruption, padded
):
    network = FAMILY.build_network(
        region_spec(corruption=corruption, positions="sinusoidal")
    ).double()
    perturb(network)
    x, t = windows["regions"], torch.tensor([0, 3, 400, 999])
    present = windows["present"] if padded else None
    mask = some_mask(windows)
    mask[1] = False  # a window without a masked region
    rows = masked_rows(mask)
    target = take_rows(x, rows.index)

    def gradients(prediction):
        network.zero_grad()
        loss = ((prediction - target).square() * rows.valid[..., None]).sum()
        loss.backward()
        return loss, {name: p.grad.clone() for name, p in network.named_parameters()}

    loss, saved = gradients(network(x, mask, t, present, rows.index))
    plain_loss, plain = gradients(
        take_rows(plain_forward(network, x, mask, t, present, network.time(t)), rows.index)
    )
    torch.testing.assert_close(loss, plain_loss, rtol=1e-7, atol=0)
    assert saved.keys() == plain.keys()
    for name, gradient in saved.items():
        torch.testing.assert_close(gradient, plain[name], rtol=1e-5, atol=1e-7)


def test_bf16_weights_and_autocast(region_spec, windows, perturb):
    network = FAMILY.build_network(region_spec(positions="sinusoidal"))
    perturb(network)
    x, mask, t = windows["regions"].float(), some_mask(windows), torch.tensor([0, 3, 400, 999])
    whole = network(x, mask, t)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(network(x, mask, t).float(), whole, rtol=0.1, atol=0.1)
    half = network.to(torch.bfloat16)(x.bfloat16(), mask, t)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), whole, rtol=0.1, atol=0.1)


def test_checkpointed_modules_hold_most_parameters(region_spec):
    network = FAMILY.build_network(region_spec())
    held = sum(p.numel() for module in network.checkpointed_modules() for p in module.parameters())
    assert held > 0.8 * sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"width": 30},
            r"model.width=30 is no multiple of model.num_heads=4; set model.width to 28 or 32.",
        ),
        ({"time_width": 15}, r"model.time_width=15 is no multiple of 2"),
        (
            {"num_heads": 3, "width": 33, "positions": "sinusoidal"},
            r"model.width=33 is no multiple of 2 .* 30 or 36",
        ),
        (
            {"mlp_ratio": 0.33},
            r"model.mlp_ratio=0.33 makes an MLP 10.56 wide .* set model.mlp_ratio to 0.34375",
        ),
    ],
)
def test_sizes_that_do_not_fit(region_spec, changes, message):
    with pytest.raises(ValueError, match=message):
        region_spec(**changes)
