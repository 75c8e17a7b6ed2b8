"""Alignment with an encoder's features: invariances, dependence on neighbours, size."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ditlab_models.pixelhdm.objective import Alignment, normalise_features


def identity(width):
    """A head that returns its tokens."""
    alignment = Alignment(width, width)
    nn.init.dirac_(alignment.projection.weight)
    nn.init.zeros_(alignment.projection.bias)
    return alignment


def test_normalised_features_are_standardised_over_patches():
    features = 5 + 3 * torch.randn(2, 12, 4)
    found = normalise_features(features)
    assert_close(found.mean(1), torch.zeros(2, 4), rtol=0, atol=1e-6)
    assert_close(found.std(1, correction=0), torch.ones(2, 4), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("tokens", "features"), [("float64", "float64"), ("float64", "float32")])
def test_float64_keeps_its_digits(tokens, features):
    """Two patches with opposite features: targets are (1, 1) and (-1, -1) up to their length, and
    tokens at an angle of 0.3 to them are at a distance of 1 - cos 0.3."""
    turned = torch.tensor(
        [math.cos(math.pi / 4 + 0.3), math.sin(math.pi / 4 + 0.3)], dtype=getattr(torch, tokens)
    )
    opposite = torch.tensor([[[5.0, 2.0], [3.0, 0.0]]], dtype=getattr(torch, features))
    found = identity(2).double()(torch.stack((turned, -2 * turned))[None], opposite, 1)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(1 - math.cos(0.3), abs=1e-15)


def test_patches_lie_row_by_row():
    """A kernel that takes the left neighbour moves tokens one column to the right, and none into
    another row.
    """
    alignment = identity(1)
    with torch.no_grad():
        alignment.projection.weight.zero_()
        alignment.projection.weight[0, 0, 1, 0] = 1
    tokens = torch.randn(1, 12, 1)
    moved = torch.zeros(1, 3, 4, 1)
    moved[:, :, 1:] = tokens.view(1, 3, 4, 1)[:, :, :-1]
    expected = (
        1
        - (
            moved.sign().flatten()
            * normalise_features(torch.arange(12.0).view(1, 12, 1)).sign().flatten()
        ).mean()
    )
    found = alignment(tokens, torch.arange(12.0).view(1, 12, 1), 3)
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("features", [torch.zeros(1, 6, 4), torch.ones(1, 6, 4)])
def test_features_without_variation_leave_it_finite(features):
    tokens = torch.randn(1, 6, 4, requires_grad=True)
    loss = Alignment(4, 4)(tokens, features, 2)
    loss.backward()
    assert loss.item() == 1 and tokens.grad.isfinite().all()
