"""Features as columns: the same as in the step, reproducible, and never silently beyond float16."""

import numpy as np
import pytest
import torch

from ditlab.encoders.cache import content_keys
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.errors import UserError
from ditlab_addons.encode.encoding import image_columns, text_columns

CAPTIONS = ["a red seven", "a", "a green circle on the left of a blue square", "two white digits"]


@pytest.fixture
def text(text_folder):
    return FrozenTextEncoder(str(text_folder), None, 64)


@pytest.fixture
def image(image_folder):
    return FrozenImageEncoder(str(image_folder), None, 4)


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
    assert content_keys(values.view(4, 2, 3)) != keys
    assert content_keys(values.to(torch.int8)) != keys
    assert len(set(content_keys(values.float() + torch.tensor(0.5)))) == 4
