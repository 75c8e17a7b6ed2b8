"""Features as columns: the same as in the step, reproducible, and never silently beyond float16."""

import numpy as np
import pytest
import torch

from ditlab.encoders.cache import content_keys
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.errors import UserError
from ditlab_addons.encode.encoding import image_columns, image_shapes, text_columns, text_shapes

CAPTIONS = ["a red seven", "a", "a green circle on the left of a blue square", "two white digits"]


@pytest.fixture
def text(text_folder) -> FrozenTextEncoder:
    return FrozenTextEncoder(str(text_folder), None, 64)


@pytest.fixture
def image(image_folder) -> FrozenImageEncoder:
    return FrozenImageEncoder(str(image_folder), None, 4)


def test_columns_of_captions_are_those_of_the_step(text):
    longest = max(text.num_tokens(CAPTIONS))
    parts = [text_columns(text, CAPTIONS[:1], longest), text_columns(text, CAPTIONS[1:], longest)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    for name, (dtype, shape) in text_shapes(text, longest).items():
        assert columns[name].dtype == dtype and columns[name].shape == (4, *shape)
    made = text.encode(CAPTIONS)
    assert np.array_equal(columns["text_mask"], made["text_mask"].numpy())
    # float16's rounding
    assert np.allclose(columns["text"], made["text"].numpy(), rtol=2**-11, atol=1e-6)
    assert np.array_equal(columns["text_pooled"], made["text_pooled"].numpy())


def test_captions_are_cut_to_the_encoders_length(text_folder):
    short = FrozenTextEncoder(str(text_folder), None, 3)
    assert max(short.num_tokens(CAPTIONS)) == 3
    assert text_columns(short, CAPTIONS, 3)["text"].shape == (4, 3, 32) and short.num_truncated > 0


def test_columns_of_images_are_those_of_the_step(image):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 8, 12), dtype=np.uint8)
    column = image_columns(image, pixels)["image_features"]
    assert {"image_features": (str(column.dtype), column.shape[1:])} == image_shapes(image, 8, 12)
    expected = image.encode(torch.from_numpy(pixels).float() / 127.5 - 1).numpy()
    assert np.allclose(column, expected, rtol=2**-11, atol=1e-6)
    assert np.array_equal(column[1:], image_columns(image, pixels[1:])["image_features"])


def test_features_that_are_not_finite_are_refused(text, image):
    with torch.no_grad():
        text.network.norm.weight.fill_(1e6)
        image.network.norm.bias.fill_(float("nan"))
    with pytest.raises(
        UserError, match=r"gives text that is NaN or infinite in float16 \(they are beyond"
    ):
        text_columns(text, CAPTIONS, 64)
    with pytest.raises(
        UserError, match=r"image encoder gives image_features .* \(the checkpoint is damaged\)"
    ):
        image_columns(image, np.zeros((1, 3, 8, 8), np.uint8))


def test_keys_are_those_of_content():
    values = torch.arange(24, dtype=torch.uint8).view(4, 6)
    keys = content_keys(values)
    assert len(set(keys)) == 4 and content_keys(values[2:]) == keys[2:]
    assert (
        content_keys(values.view(4, 2, 3)) != keys and content_keys(values.to(torch.int8)) != keys
    )
    assert len(set(content_keys(values.float() + torch.tensor(0.5)))) == 4
