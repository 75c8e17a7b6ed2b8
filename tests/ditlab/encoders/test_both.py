"""Encoders of captions and of images alike: features are a row's own, cached or not, and nothing of
them is trained.
"""

from functools import partial

import numpy as np
import pytest
import torch

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from support.models.draws import seeded

TEXTS = np.array(
    ["a red seven", "nothing", "a green circle on the left of a blue square", "sept rouge, é"]
)
IMAGES = torch.rand(4, 3, 16, 24, generator=seeded()) * 2 - 1


@pytest.fixture(scope="module", params=["text", "image"])
def kind(request, text_folder, image_folder):
    """(Maker of encoders with options, captions or images)."""
    if request.param == "text":
        return partial(FrozenTextEncoder, str(text_folder), 32, 32), TEXTS
    return partial(FrozenImageEncoder, str(image_folder), 24, 4), IMAGES


def features(encoder, some):
    """Features of each row, without padding."""
    found = encoder.encode(some)
    if isinstance(encoder, FrozenImageEncoder):
        return list(found)
    rows = zip(found["text"], found["text_mask"], found["text_pooled"], strict=True)
    return [torch.cat([row[mask], pooled[None]]) for row, mask, pooled in rows]


def test_features_do_not_depend_on_the_rest_of_the_batch(kind):
    """Bit by bit on the CPU: a run that was resumed meets its rows in other company."""
    make, inputs = kind
    encoder = make()
    for row, together in enumerate(features(encoder, inputs)):
        assert torch.equal(features(encoder, inputs[[row]])[0], together)


@pytest.mark.parametrize("entries", [0, 2, 100])
def test_cached_features_are_the_same(kind, entries):
    make, inputs = kind
    expected, cached = features(make(), inputs), make(cache=entries)
    for order in ([0, 1, 2, 3], [0, 1], [3, 3, 0], [2, 1], [3, 2, 1, 0], [0, 1, 2, 3]):
        for row, found in zip(order, features(cached, inputs[order]), strict=True):
            assert torch.equal(found, expected[row])


def test_a_row_is_encoded_once(kind):
    make, inputs = kind
    passes, cached = [], make(cache=100)
    cached.network.register_forward_hook(lambda *_: passes.append(1))
    for order in ([0, 0, 1], [0, 1, 2, 3]):
        cached.encode(inputs[order])
    assert len(passes) == len(inputs)


def test_they_are_frozen(kind):
    make, inputs = kind
    encoder = make()
    assert not encoder.network.training and not any(
        each.requires_grad for each in encoder.network.parameters()
    )
    (made,) = features(encoder, inputs[[0]])
    weight = torch.ones(made.shape[-1], requires_grad=True)
    (made * weight).sum().backward()  # features can be kept for a backward pass
    assert weight.grad is not None and not made.requires_grad
