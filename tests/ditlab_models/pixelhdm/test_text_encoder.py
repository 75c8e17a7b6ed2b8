"""Captions as bytes, the learned encoder, and the null condition."""

import pytest
import torch
from torch.testing import assert_close

from ditlab_models.pixelhdm.family import FAMILY
from ditlab_models.pixelhdm.spec import PixelHDMSpec
from ditlab_models.pixelhdm.text_encoder import (
    TextEncoder,
    caption_bytes,
)
from support.models.draws import perturb
from support.models.pixelhdm_samplers import LEARNED

SPEC = PixelHDMSpec(width=32, num_heads=4, num_kv_heads=2, mrope_widths=(4, 2, 2), text_length=24)


@pytest.fixture
def encoder():
    return perturb(TextEncoder(SPEC), std=0.1).double()


def test_captions_are_their_bytes_with_zeros_behind():
    tokens = caption_bytes(["é!", "", "abcd"], 10)
    assert tokens.tolist() == [[0xC3, 0xA9, 0x21, 0], [0, 0, 0, 0], [97, 98, 99, 100]]
    assert tokens.dtype == torch.int64


def test_long_captions_are_cut_where_a_character_ends():
    tokens = caption_bytes(["aé€", "four", "abcde"], 5)  # 1, 2 and 3 bytes in the first
    assert [bytes(row).rstrip(b"\0").decode() for row in tokens.tolist()] == ["aé", "four", "abcde"]


@pytest.mark.parametrize("texts", [[""], ["", ""], ["€"]])
def test_there_is_a_token_even_of_nothing(texts):
    assert caption_bytes(texts, 2).tolist() == len(texts) * [[0]]


def test_padding_changes_nothing(encoder):
    tokens = caption_bytes(["a red seven", "two"], 24)
    text = encoder(tokens)
    longer = encoder(torch.nn.functional.pad(tokens, (0, 9)))
    alone = encoder(tokens[1:, :3])
    assert text.mask.sum(dim=1).tolist() == [11, 3]
    assert_close(longer.features[:, :11][text.mask], text.features[text.mask])
    assert_close(longer.pooled, text.pooled)
    assert_close(alone.features, text.features[1:, :3])
    assert_close(alone.pooled, text.pooled[1:])


def test_order_of_letters_is_told(encoder):
    pooled = encoder(caption_bytes(["two red", "red two"], 24)).pooled
    assert not torch.allclose(pooled[0], pooled[1], atol=1e-3)


def test_features_and_summary_have_a_mean_square_of_1_at_the_start():
    text = TextEncoder(SPEC)(caption_bytes(["a red seven on blue"], 24))
    assert text.features.square().mean().item() == pytest.approx(1, rel=1e-2)
    assert text.pooled.square().mean().item() == pytest.approx(1, rel=1e-2)


def test_an_empty_caption_is_finite_and_gives_finite_gradients(encoder):
    text = encoder(caption_bytes(["", "a"], 24))
    assert not text.mask[0].any() and torch.equal(text.pooled[0], torch.zeros(32).double())
    (text.features.square().sum() + text.pooled.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


@pytest.mark.parametrize("caption", ["", "a red seven"])
def test_a_dropped_caption_is_the_same_null_condition_as_with_a_frozen_encoder(caption):
    network = FAMILY.build_network(PixelHDMSpec(**LEARNED))
    dropped = network.text({"caption": caption_bytes([caption], 24)}, torch.tensor([False]))
    assert not dropped.features.any() and not dropped.pooled.any() and dropped.mask.sum() == 1
