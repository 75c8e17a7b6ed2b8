"""Features of images equal those of transformers, patch by patch."""

import pytest
import torch

from ditlab.encoders.image import FrozenImageEncoder
from support.models.draws import seeded


@pytest.fixture(scope="module")
def encoder(image_folder):
    return FrozenImageEncoder(str(image_folder), 24, 4)


@pytest.fixture
def images():
    """16 x 24 pixels, in [-1, 1]."""
    return torch.rand(5, 3, 16, 24, generator=seeded()) * 2 - 1


def test_features_are_the_patch_tokens(encoder, image_folder, images):
    """Behind the class token and the registers, of images that torchvision would have
    normalised.
    """
    from transformers import AutoModel

    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    pixels = ((images + 1) / 2 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        tokens = (
            AutoModel.from_pretrained(image_folder).eval()(pixel_values=pixels).last_hidden_state
        )
    assert tokens.shape == (5, 1 + 3 + 4 * 6, 24)
    found = encoder.encode(images)
    assert found.shape == (5, 24, 24) and torch.allclose(found, tokens[:, 4:], atol=1e-4)


def test_keys_of_the_cache_are_those_of_stored_images_and_of_their_shape(
    encoder, image_folder, images
):
    passes = []
    cached = FrozenImageEncoder(str(image_folder), 24, 4, cache=100)
    cached.network.register_forward_hook(lambda *_: passes.append(1))
    stored = ((images + 1) * 127.5).round().to(torch.uint8)
    seen = stored.float().div(127.5).sub(1)
    for order in ([0, 1, 2, 3, 4], [4, 4, 0]):
        assert torch.equal(cached.encode(seen[order], stored[order]), encoder.encode(seen[order]))
    cached.encode(stored.view(5, 3, 24, 16) / 127.5 - 1, stored.view(5, 3, 24, 16))
    assert len(passes) == 5 + 5


@pytest.mark.slow  # a compiler at work
def test_compiled(image_folder, encoder, images):
    compiled = FrozenImageEncoder(str(image_folder), 24, 4, compile=True)
    for some in (images, images.transpose(2, 3)):
        assert torch.allclose(compiled.encode(some), encoder.encode(some), atol=1e-4)
