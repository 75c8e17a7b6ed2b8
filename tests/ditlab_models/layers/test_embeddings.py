"""Embeddings of time, positions, labels and patches."""

import math

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.layers.embeddings import (
    TimeEmbedding,
    drop_labels,
    embed,
    frequencies,
    patchify,
    table,
    unpatchify,
)
from support.damage import refused


def test_position_one_begins_as_published():
    row = table(2, 16, dtype=torch.float64)[1]
    expected = torch.tensor([0.84147098, 0.54030231, 0.31098359, 0.95041528], dtype=torch.float64)
    assert_close(row[:4], expected, rtol=0, atol=5e-9)


def test_lowest_frequency_by_denominator():
    assert frequencies(256, denominator="half")[-1].item() == pytest.approx(1.0746e-4, rel=1e-4)
    assert frequencies(256, denominator="half_minus_1")[-1].item() == 1e-4
    assert frequencies(256)[0].item() == frequencies(256, denominator="half_minus_1")[0].item() == 1


def test_layouts_hold_the_same_numbers_in_another_order():
    t = torch.tensor([0.3, 17.0], dtype=torch.float64)
    interleaved = embed(t, 10, layout="interleaved")
    sin, cos = interleaved[:, 0::2], interleaved[:, 1::2]
    assert torch.equal(embed(t, 10, layout="sin_cos"), torch.cat((sin, cos), 1))
    assert torch.equal(embed(t, 10, layout="cos_sin"), torch.cat((cos, sin), 1))


def test_embed_of_integers_is_the_table():
    assert torch.equal(embed(torch.arange(1000), 16), table(1000, 16))


@pytest.mark.parametrize("weights", [torch.float64, torch.float32, torch.bfloat16])
def test_time_embedding_rounds_to_its_weights(weights):
    time = TimeEmbedding(256, 8, 1000.0, layout="cos_sin", denominator="half").to(weights)
    t = torch.tensor([0.05, 0.35, 0.95])
    found = time.sinusoid(t)
    assert found.dtype == time(t).dtype == weights
    exact = closed_form(t.tolist(), 256, 1000.0)
    assert torch.equal(found, exact.to(weights)) or weights == torch.float64
    assert_close(found.double(), exact, rtol=0, atol=1.01 * torch.finfo(weights).eps / 2 + 2e-13)


def closed_form(t, dim, scale):
    """[cos, sin] of scale t / 10000^(2i / dim), by Python's own float64."""
    angles = [[scale * at * 10000 ** (-2 * i / dim) for i in range(dim // 2)] for at in t]
    rows = [[*map(math.cos, row), *map(math.sin, row)] for row in angles]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_times_are_embedded_in_float32(dtype):
    t = torch.tensor([0.0, 0.25, 0.5], dtype=dtype)
    embedded = embed(t, 16, scale=1000)
    assert embedded.dtype == torch.float32
    assert torch.equal(embedded, embed(t.float(), 16, scale=1000))


@pytest.mark.parametrize(("dim", "denominator"), [(7, "half"), (2, "half_minus_1"), (0, "half")])
def test_impossible_widths_are_refused(dim, denominator):
    with refused(f"width {dim}", ValueError):
        frequencies(dim, denominator=denominator)


def test_labels_drop_where_the_draw_is_below_the_rate():
    label = torch.tensor([3, 1, 4, 1])
    dropped = drop_labels(label, torch.tensor([0.0, 0.0999, 0.1, 0.9]), rate=0.1, null=10)
    assert dropped.tolist() == [10, 10, 4, 1]
    assert dropped.dtype == torch.int64


def test_unpatchify_undoes_patchify():
    for channels, rows, columns, size in ((1, 7, 7, 4), (3, 2, 5, 3), (4, 3, 3, 1)):
        image = torch.randn(2, channels, rows * size, columns * size)
        patches = patchify(image, size)
        assert patches.shape == (2, rows * columns, size * size * channels)
        assert torch.equal(unpatchify(patches, size, rows, channels), image)
