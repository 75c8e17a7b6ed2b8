"""The plain networks compute what ours do, given the same weights."""

import torch
from torch import nn

from benchmarks.plain.networks import plain_network
from benchmarks.plain.pixelhdm import HandFrequencyLoss, HandPixelHDM
from ditlab_models.dit.spec import DiTSpec
from ditlab_models.dlm.spec import DLMSpec
from ditlab_models.families import family_of
from ditlab_models.pixelhdm.spec import PixelHDMSpec
from ditlab_models.processes.frequency_loss import frequency_error, frequency_weights
from ditlab_models.region.spec import RegionSpec
from ditlab_models.unet.spec import UNetSpec


def assert_same(plain, ours, run, first=()):
    """Draw weights for both, in the order of their parameters; `first` are the plain ones that ours
    begins with.
    """
    theirs = list(plain.parameters())
    theirs = [theirs[index] for index in first] + theirs[len(list(first)) :]
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs, strict=True):
            nn.init.normal_(mine, std=0.1)
            assert other.shape == mine.shape
            other.copy_(mine)
        expected = run(ours)
        assert expected.std() > 1e-2
        torch.testing.assert_close(run(plain), expected, rtol=1e-3, atol=1e-3)


def test_plain_networks_compute_what_ours_do():
    torch.manual_seed(0)
    images, t = torch.randn(3, 1, 8, 8), torch.rand(3)
    windows, mask, steps = (
        torch.rand(3, 20, 7),
        torch.rand(3, 20) < 0.5,
        torch.tensor([0, 500, 999]),
    )
    tokens, sigma = torch.randint(50, (3, 24)), torch.tensor([0.001, 0.1, 1.0])
    cases = [
        (
            DiTSpec(image_size=8, patch_size=2, width=32, depth=2, num_heads=4),
            lambda net: net(images, t),
            (),
        ),
        (UNetSpec(image_size=8, width=16, time_width=32), lambda net: net(images, t), ()),
        # A module's own parameters, here the two tokens, come before its children's.
        (
            RegionSpec(
                num_features=7, num_regions=20, width=32, depth=2, num_heads=4, time_width=16
            ),
            lambda net: net(windows, mask, steps),
            (2, 3, 0, 1),
        ),
        (
            DLMSpec(length=24, vocabulary=50, width=32, depth=2, num_heads=4),
            lambda net: net(tokens, sigma),
            (),
        ),
    ]
    for spec, run, first in cases:
        assert_same(plain_network(spec), family_of(spec).build_network(spec), run, first)


def test_plain_pixelhdm_computes_what_ours_does():
    torch.manual_seed(0)
    sizes = {
        "width": 48,
        "pixel_width": 4,
        "patch_size": 8,
        "patch_depth": 2,
        "pixel_depth": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "bottleneck_width": 16,
        "time_width": 32,
    }
    spec = PixelHDMSpec(**sizes, mrope_widths=(8, 8, 8), text_length=6, max_resolution=64)
    plain, ours = HandPixelHDM(**sizes, rotated=(8, 8, 8)), family_of(spec).build_network(spec)
    images, t, text, pooled = (
        torch.randn(2, 3, 32, 32),
        torch.rand(2),
        torch.randn(2, 6, 48),
        torch.randn(2, 48),
    )
    text_mask = torch.arange(6) < torch.tensor([[6], [2]])
    condition = {"text": text, "text_mask": text_mask, "text_pooled": pooled}

    def run(network):
        return (
            network(images, t, text, text_mask, pooled)
            if network is plain
            else network(images, t, condition)
        )

    assert_same(plain, ours, run)
    error = torch.randn(2, 3, 16, 16)
    expected = frequency_error(error, torch.zeros_like(error), frequency_weights(90))
    torch.testing.assert_close(HandFrequencyLoss()(error), expected, rtol=1e-4, atol=1e-5)
