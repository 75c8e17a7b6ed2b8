"""The PixelHDM network: sizes, initialisation, and dependence of its output on the inputs."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.parameters import count_parameters
from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMSpec
from support.damage import refused
from support.models.draws import perturb
from support.models.plain_pixelhdm import PlainPixelHDM

SMALL = {
    "width": 32,
    "pixel_width": 4,
    "patch_size": 4,
    "patch_depth": 3,
    "pixel_depth": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "mrope_widths": (4, 2, 2),
    "bottleneck_width": 12,
    "time_width": 16,
    "max_resolution": 32,
    "text_length": 10,
}


def small(**changes):
    return PixelHDMSpec(**{**SMALL, **changes})


def texts(*lengths, width=32, tokens=None):
    """Random texts of so many tokens each, padded with noise to the longest, or to `tokens`."""
    tokens = tokens or max(lengths)
    return {
        "text": torch.randn(len(lengths), tokens, width),
        "text_mask": torch.arange(tokens) < torch.tensor(lengths)[:, None],
        "text_pooled": torch.randn(len(lengths), width),
    }


def in_double(condition):
    return {
        name: values.double() if values.is_floating_point() else values
        for name, values in condition.items()
    }


@pytest.fixture
def network():
    return perturb(FAMILY.build_network(small()), std=0.1).double()


@pytest.fixture
def inputs():
    """Two images of 8x12 at two times, with texts of 5 and 3 tokens."""
    return (
        torch.randn(2, 3, 8, 12).double(),
        torch.tensor([0.2, 0.7]).double(),
        in_double(texts(5, 3)),
    )


# Sizes


def test_elementwise_gates_have_a_weight_more_for_each_number_of_a_head():
    """In 20 attentions, of 16 heads each."""
    counts = [
        count_parameters(PixelHDMSpec(gate=gate)).total for gate in ("headwise", "elementwise")
    ]
    assert counts[1] - counts[0] == 20 * (1_048_576 - 16_384)


def test_learned_text_and_positions_are_components_of_their_own():
    plain, count = (
        count_parameters(small()),
        count_parameters(small(text_encoder="learned", positions="learned")),
    )
    assert count.components["positions"] == (10 + 8 * 8) * 32
    # norms, attention, SwiGLU
    block = 2 * 32 + (2 * 32 * 32 + 2 * 32 * 16 + 32 * 4 + 1) + 3 * 32 * 96
    assert count.components["text_encoder"] == 256 * 32 + 2 * block + 2 * 32 + 32 * 32
    assert (
        count.total
        == plain.total + count.components["positions"] + count.components["text_encoder"]
    )


# Start


def test_it_starts_as_published():
    """Weights that the general Xavier overwrote are restored: gates 0.5, adaLN biases, the small
    expansion.
    """
    network = FAMILY.build_network(PixelHDMSpec(patch_depth=1, pixel_depth=1))
    patch, pixel = network.patch_blocks[0], network.pixel_blocks[0]
    for attention in (patch.attention, pixel.compaction.attention):
        assert torch.equal(attention.gates(torch.randn(1, 3, 1024)), torch.full((1, 3, 16, 1), 0.5))
        assert attention.temperature.item() == 8.0
    for six_way, initial_scale in ((patch.adaln, 1.0), (pixel.adaln.six_way, 1e-4)):
        starts = torch.tensor([initial_scale, 0.0, 1.0, initial_scale, 0.0, 1.0])
        assert torch.equal(
            six_way.linear.bias.unflatten(0, (6, -1)),
            starts[:, None].expand(6, six_way.linear.in_features),
        )
        assert six_way.linear.weight.abs().max() > 0
    bound = 0.1 * math.sqrt(6 / 5120)
    assert bound == pytest.approx(0.0034233, abs=1e-7)
    assert 0.999 * bound < pixel.compaction.expand.weight.abs().max() <= bound
    assert network.head.weight.abs().max() <= math.sqrt(6 / 19) and torch.equal(
        network.head.bias, torch.zeros(3)
    )


def test_untrained_output_is_as_large_as_a_velocity():
    """A head that starts small would leave the loss at the velocity's own variance for long."""
    network = FAMILY.build_network(small(width=64, mrope_widths=(4, 6, 6), pixel_width=16))
    output = network(torch.randn(4, 3, 16, 16), torch.rand(4), texts(6, 6, 6, 6, width=64))
    assert 0.3 < output.std() < 3


# Images and texts of any size


@pytest.mark.parametrize("size", [(4, 4), (8, 32), (32, 12)])
def test_output_has_the_size_of_the_image(network, size):
    x = torch.randn(2, 3, *size).double()
    assert network(x, torch.rand(2).double(), in_double(texts(10, 1))).shape == x.shape


@pytest.mark.parametrize(
    ("size", "length", "message"),
    [
        ((10, 8), 2, "height=10 is no multiple of model.patch_size=4; set height to 8 or 12."),
        (
            (8, 36),
            2,
            "width=36 is not between 1 and model.max_resolution=32; set width to 32 or less, or train with",
        ),
        ((8, 8), 11, "text has 11 tokens, more than model.text_length=10; cut it, or train with"),
    ],
)
def test_unsupported_sizes_are_refused(network, size, length, message):
    with refused(message, ValueError):
        network(
            torch.zeros(1, 3, *size).double(), torch.zeros(1).double(), in_double(texts(length))
        )


@pytest.mark.parametrize("positions", ["mrope", "learned"])
def test_padding_changes_nothing_and_samples_are_independent(positions, inputs):
    """Neither the amount of padding nor its content matters: each text has its own length, as if it
    were alone.
    """
    network = perturb(FAMILY.build_network(small(positions=positions)), std=0.1).double()
    x, t, condition = inputs
    together = network(x, t, condition)
    longer = in_double(texts(5, 3, tokens=9))
    longer["text"][:, :5] = torch.where(
        condition["text_mask"][..., None], condition["text"], longer["text"][:, :5]
    )
    longer["text_pooled"] = condition["text_pooled"]
    assert_close(network(x, t, longer), together)
    short = {"text": condition["text"][1:, :3], "text_mask": condition["text_mask"][1:, :3]}
    alone = network(x[1:], t[1:], short | {"text_pooled": condition["text_pooled"][1:]})
    assert_close(alone, together[1:])


# What the output depends on


def test_null_condition_is_one_and_the_same_whatever_the_prompt(network, inputs):
    x, t, condition = inputs
    dropped = torch.zeros(2, dtype=torch.bool)
    nothing = {
        "text": torch.zeros(2, 1, 32).double(),
        "text_mask": torch.ones(2, 1, dtype=torch.bool),
        "text_pooled": torch.zeros(2, 32).double(),
    }
    expected = network(x, t, nothing)
    for other in (condition, in_double(texts(1, 9)), in_double(texts(7, 2))):
        assert_close(network(x, t, other, dropped), expected)
    mixed = network(x, t, condition, torch.tensor([True, False]))
    assert_close(mixed, torch.stack((network(x, t, condition)[0], expected[1])))


def test_features_are_the_patches_behind_a_block(network, inputs):
    x, t, condition = inputs
    seen = []
    network.patch_blocks[1].register_forward_hook(lambda module, args, output: seen.append(output))
    output, features = network(x, t, condition, features_after=2)
    assert features.shape == (2, 6, 32)
    assert torch.equal(features, seen[0][:, 5:])
    assert_close(output, network(x, t, condition))


# Options


def test_learned_positions_are_the_same_in_every_size():
    """Row 1, column 0 is one vector, in images two patches wide and eight, whatever text stands
    before them.
    """
    positions = FAMILY.build_network(small(positions="learned")).positions
    narrow, wide = positions(3, 2, 2), positions(9, 2, 8)
    assert torch.equal(narrow[:3], wide[:3])
    narrow, wide = narrow[3:].view(2, 2, 32), wide[9:].view(2, 8, 32)
    assert torch.equal(narrow, wide[:, :2])
    assert len(wide.flatten(0, 1).unique(dim=0)) == 16


# The whole


@pytest.mark.parametrize(
    ("residual", "gate"), [("block", "headwise"), ("double", "headwise"), ("block", "elementwise")]
)
def test_the_whole_network_equals_plain_arithmetic(residual, gate):
    """Order of patches and channels, positions by each text's own length, heads that share keys,
    all conditions.
    """
    sizes = {"width": 64, "mrope_widths": (4, 6, 6), "bottleneck_width": 20, "time_width": 32}
    spec = small(**sizes, rope_base=500.0, pixel_residual=residual, gate=gate)
    network = perturb(FAMILY.build_network(spec).double())
    x, t = torch.randn(3, 3, 12, 8).double(), torch.rand(3).double()
    condition = in_double(texts(6, 2, 4, width=64))
    plain = PlainPixelHDM(spec, dict(network.state_dict()))
    with torch.no_grad():
        assert_close(network(x, t, condition), plain(x, t, condition), rtol=0, atol=1e-10)
