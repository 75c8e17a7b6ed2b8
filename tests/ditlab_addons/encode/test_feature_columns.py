"""Features stored beside images are those that the encoders give."""

import numpy as np
import pytest
import torch

from ditlab.data.images.captions import decode_captions
from ditlab.data.importing import ImportRequest, run_import
from ditlab.data.stores.bucketed_store import open_store
from ditlab.data.stores.manifest import Column
from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.spec.importing import ImagesOptions
from ditlab_addons.encode.encoding import EncodingRules, encode_store, image_columns, text_columns
from support.damage import refused
from support.datasets.photographs import captioned_folder, smooth
from support.datasets.writing import written

CAPTIONS = ["a red seven", "a green circle on the left of a blue square", "nothing"]


@pytest.fixture
def places(text_folder, image_folder):
    """Encoders of captions and of images."""
    return {"encode_text": str(text_folder), "encode_images": str(image_folder)}


@pytest.fixture
def run(home, tmp_path):
    sizes = [(16, 32), (24, 24), (16, 32)]
    files = {f"{n}.png": (smooth(*size, n), CAPTIONS[n]) for n, size in enumerate(sizes)}
    source = captioned_folder(tmp_path / "photos", files)

    def run(**options):
        chosen = ImagesOptions(
            source=source, resolution=24, patch=4, step=8, processes=1, **options
        )
        (imported,) = run_import("images", ImportRequest(home.stores, home.caches, chosen))
        return imported.store

    return run


def test_features_are_those_of_the_encoders(run, places):
    run(name="set")
    store = encode_store("set", **places).store
    assert {part.name for part in store.parts} == {"24x24", "16x32"}
    text = FrozenTextEncoder(places["encode_text"], None, 512)
    image = FrozenImageEncoder(places["encode_images"], None, 4)
    longest = max(text.num_tokens(CAPTIONS))
    for part in store.parts:
        captions = decode_captions(part.tensor("caption").numpy())
        made = text_columns(text, captions, longest)
        made |= image_columns(image, part.tensor("image").numpy())
        for name, values in made.items():
            assert part.columns[name].dtype == values.dtype
            np.testing.assert_allclose(part.tensor(name).numpy(), values, atol=1e-2)


def test_an_encoding_that_was_killed_goes_on(run, places, home, monkeypatch):
    store = run(name="set")
    monkeypatch.setattr("ditlab.data.import_blocks.LEAST_BYTES", 1)  # a block for each row
    convert, blocks = EncodingRules.convert, []

    def convert_once(rules, block, folder):
        if len(blocks) == 1:
            blocks.append(None)
            raise KeyboardInterrupt
        blocks.append(block.number)
        return convert(rules, block, folder)

    monkeypatch.setattr(EncodingRules, "convert", convert_once)
    with pytest.raises(KeyboardInterrupt):
        encode_store("set", **places)
    written = encode_store("set", **places)
    assert blocks == [0, None, 1, 2] and written.outcome == "written"
    assert written.store.name == "set-encoded" and len(written.store) == 3
    assert open_store(home.stores / "set").fingerprint == store.fingerprint
    assert encode_store("set", **places).outcome == "unchanged"
    fewer = encode_store("set", encode_text=places["encode_text"], tokens=3, name="cut").store
    assert fewer.columns["text"].shape == (3, 32)


def test_a_store_without_buckets_gets_features(tmp_path, home, image_folder):
    images = np.arange(4 * 3 * 8 * 8, dtype=np.uint8).reshape(4, 3, 8, 8)
    columns = {"image": Column(dtype="uint8", shape=(3, 8, 8), value_range=(0, 255))}
    store = written(tmp_path / "plain", columns, {"image": images})
    encoded = encode_store(store.path, encode_images=str(image_folder), patch=4).store
    assert encoded.columns["image_features"].shape == (4, 24)
    assert torch.equal(encoded.tensor("image"), store.tensor("image"))


def test_stores_that_cannot_be_encoded(run, image_folder):
    image = str(image_folder)
    run(name="set", caption_from="none")
    encode_store("set", encode_images=image)
    for message, options in (
        ("holds image_features already; encode the store", {"store": "set-encoded"}),
        ("STORE=s3://b/set is a URI; name a store's folder", {"store": "s3://b/set"}),
        ("--name=set is the store's own; name another one", {"name": "set"}),
        ("--encode-images=.*patches of 4 pixels", {"patch": 16}),
        ("nothing to encode with; give --encode-text, --enc", {"encode_images": None}),
        (
            "--encode-text=x needs captions, and .*set holds image; leave it out",
            {"encode_images": None, "encode_text": "x"},
        ),
    ):
        with refused(message):
            encode_store(**{"store": "set", "encode_images": image, **options})
