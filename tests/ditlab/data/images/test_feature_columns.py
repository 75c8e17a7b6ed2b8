"""Features stored while images are imported are those that the encoders give."""

import numpy as np
import pytest
import torch

from ditlab.data.images.captions import decode_captions
from ditlab.data.import_request import ImportRequest
from ditlab.data.importing import run_import
from ditlab.data.stores.bucketed_store import BucketedStore
from ditlab.errors import UserError
from ditlab.spec.importing import ImagesOptions
from support.datasets.photographs import captioned_folder, smooth
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder

CAPTIONS = ["a red seven", "a green circle on the left of a blue square", "nothing"]


@pytest.fixture
def run(home, tmp_path):
    sizes = [(16, 32), (24, 24), (16, 32)]
    files = {f"{n}.png": (smooth(*size, n), CAPTIONS[n]) for n, size in enumerate(sizes)}
    source = captioned_folder(tmp_path / "photos", files)

    def run(**options) -> BucketedStore:
        chosen = ImagesOptions(source=source, resolution=24, patch=4, step=8, processes=1, **options)
        (imported,) = run_import("images", ImportRequest(home.stores, home.caches, chosen))
        return imported.store

    return run


def test_features_are_those_of_the_encoders(run, tmp_path):
    from ditlab.encoders.image import FrozenImageEncoder
    from ditlab.encoders.text import FrozenTextEncoder

    places = {
        "encode_text": str(write_text_encoder(tmp_path / "text")),
        "encode_images": str(write_image_encoder(tmp_path / "image")),
    }
    store = run(**places)
    assert {part.name for part in store.parts} == {"24x24", "16x32"}
    text = FrozenTextEncoder.open(places["encode_text"], None, 512)
    image = FrozenImageEncoder.open(places["encode_images"], None, 4)
    tokens = max(text.num_tokens(CAPTIONS))
    for part in store.parts:
        captions = decode_captions(part.tensor("caption").numpy())
        made = text.encode(captions)
        mask = part.tensor("text_mask")
        assert mask.shape == (len(part), tokens) and mask.sum(1).tolist() == text.num_tokens(captions)
        stored = part.tensor("text")
        assert stored.dtype == torch.float16 and stored.shape == (len(part), tokens, text.width)
        assert torch.equal(stored[mask], made["text"][made["text_mask"]].half()) and not stored[~mask].any()
        assert torch.equal(part.tensor("text_pooled"), made["text_pooled"])
        pixels = part.tensor("image").float() / 127.5 - 1
        patches = part.columns["image"].shape[1] * part.columns["image"].shape[2] // 16
        assert part.columns["image_features"].shape == (patches, image.width)
        assert torch.allclose(part.tensor("image_features").float(), image.encode(pixels), atol=1e-2)
    assert run(**places).fingerprint == store.fingerprint
    assert np.isclose(store.columns["text_pooled"].statistics.count, 3 * text.width)


def test_one_encoder_alone_stores_its_own_features(run, tmp_path):
    store = run(encode_images=str(write_image_encoder(tmp_path / "image")))
    assert set(store.columns) == {"image", "caption", "image_features"}
    assert set(run().columns) == {"image", "caption"}


def test_an_encoder_that_does_not_fit_is_refused_before_anything_is_decoded(run, tmp_path, home):
    with pytest.raises(UserError, match=r"--encode-images=.*patches of 8 pixels"):
        run(encode_images=str(write_image_encoder(tmp_path / "image", patch=8)))
    with pytest.raises(UserError, match=r"--encode-text=.*holds no"):
        run(encode_text=str(tmp_path / "photos"))
    assert not home.stores.exists()
