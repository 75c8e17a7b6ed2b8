"""The frequency loss: anchors of JPEG's tables, of the transform and of the colours."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import fft
from torch.testing import assert_close

from ditlab_models.processes.frequency_loss import (
    dct_blocks,
    frequency_error,
    frequency_weights,
    quantisation_tables,
    to_ycbcr,
)

F64 = torch.float64


def test_blocks_are_scipys_transform_of_each():
    images = torch.randn(2, 3, 24, 16, dtype=F64)
    coefficients = dct_blocks(images)
    assert coefficients.shape == (2, 3, 3, 2, 8, 8)
    for row in range(3):
        for column in range(2):
            block = images[..., 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].numpy()
            expected = fft.dctn(block, axes=(-2, -1), norm="ortho")
            np.testing.assert_allclose(
                coefficients[:, :, row, column].numpy(), expected, atol=1e-13
            )


@pytest.mark.parametrize("quality", [1, 25, 50, 90, 100])
def test_tables_are_those_that_a_jpeg_file_has(quality):
    file = BytesIO()
    Image.new("RGB", (8, 8)).save(file, format="JPEG", quality=quality)
    written = Image.open(file).quantization
    for number, table in enumerate(quantisation_tables(quality)):
        assert written[number] == table.flatten().tolist()


def test_weights_at_quality_90():
    weights = frequency_weights(90).values
    assert weights.shape == (3, 8, 8) and torch.equal(weights[1], weights[2])
    assert weights[0, 0, 0].item() == pytest.approx(2.18382, abs=5e-6)
    assert weights[1, 0, 0].item() == pytest.approx(4.35347, abs=5e-6)
    assert_close(weights.mean((1, 2)), torch.ones(3, dtype=F64), rtol=0, atol=1e-15)
    assert (frequency_weights(100).values == 1).all()


def test_colours_have_their_published_values():
    colours = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=F64)[
        ..., None, None
    ]
    found = to_ycbcr(colours)[..., 0, 0]
    expected = [
        [0.299, -0.168736, 0.5],
        [0.587, -0.331264, -0.418688],
        [0.114, 0.5, -0.081312],
        [1, 0, 0],
    ]
    assert_close(found, torch.tensor(expected, dtype=F64), rtol=0, atol=5e-7)


def test_flat_weights_give_the_mean_squared_error_in_ycbcr():
    """The transform is orthonormal (Parseval)."""
    predicted, target = torch.randn(2, 4, 3, 16, 24, dtype=F64)
    expected = (to_ycbcr(predicted) - to_ycbcr(target)).square().mean()
    assert_close(frequency_error(predicted, target, frequency_weights(100)), expected)


def test_an_error_at_one_frequency_counts_by_its_weight():
    """Grey cosines of one frequency: the error in Y alone, at its weight."""
    weights = frequency_weights(90)
    place = torch.arange(16, dtype=F64) + 0.5
    for row, column in ((0, 0), (0, 3), (5, 2), (7, 7)):
        wave = torch.cos(torch.pi / 8 * row * place)[:, None] * torch.cos(
            torch.pi / 8 * column * place
        )
        image = wave.expand(1, 3, 16, 16)
        found = frequency_error(image, torch.zeros_like(image), weights)
        expected = luma_weight(90, row, column) * wave.square().mean() / 3
        assert_close(found, expected, rtol=1e-14, atol=0)


def luma_weight(quality, row, column):
    """The inverse of a step over the mean inverse, in Python's float64."""
    steps = [step for line in quantisation_tables(quality)[0].tolist() for step in line]
    return 64 / steps[8 * row + column] / sum(1 / step for step in steps)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype, autocast):
    predicted, target = torch.randn(2, 2, 3, 8, 16).to(dtype)
    expected = frequency_error(predicted.float(), target.float(), frequency_weights(90))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = frequency_error(predicted, target, frequency_weights(90))
        wide = frequency_error(predicted.float(), target.float(), frequency_weights(90))
    assert found.dtype == torch.float32
    assert found == wide == expected
