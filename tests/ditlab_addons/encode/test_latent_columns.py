"""Latents as a column: what an autoencoder of diffusers gives, with the facts that name it."""

import hashlib
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ditlab.data.stores.manifest import FORMAT_VERSION, Column
from ditlab.data.stores.store import Store
from ditlab_addons.encode.encoding import encode_store
from support.damage import refused
from support.datasets.tiny_encoders import write_autoencoder
from support.datasets.writing import written


@pytest.fixture(scope="module", autouse=True)
def diffusers():
    """The library, imported by the process that runs these tests alone: it takes a second."""
    return pytest.importorskip("diffusers")


def write_images(folder, shape=(3, 16, 16)):
    columns = {"image": Column(dtype="uint8", shape=shape, value_range=(0, 255))}
    images = np.random.default_rng(0).integers(0, 256, (6, *shape), np.uint8)
    return written(folder, columns, {"image": images}).path


@pytest.fixture
def images(home, tmp_path):
    return write_images(tmp_path / "set")


@pytest.mark.slow
def test_latents_are_the_posterior_of_diffusers_and_the_store_names_their_maker(
    images, tmp_path, diffusers
):
    place = write_autoencoder(tmp_path / "vae", scaling_factor=0.5, shift_factor=0.1)
    before = {path: path.read_bytes() for path in images.iterdir()}
    encoded = encode_store(images, autoencoder=str(place)).store
    network = diffusers.AutoencoderKL.from_pretrained(place)
    pixels = Store.open(images).tensor("image")
    with torch.no_grad():
        expected = [network.encode(each[None].float() / 127.5 - 1).latent_dist for each in pixels]
    found = encoded.tensor("latents")
    assert found.dtype == torch.float32 and found.shape == (6, 8, 8, 8)
    assert torch.equal(found[:, :4], torch.cat([each.mean for each in expected]))
    assert torch.equal(found[:, 4:], torch.cat([each.logvar for each in expected]))
    assert torch.equal(encoded.tensor("image"), pixels)
    assert {path: path.read_bytes() for path in images.iterdir()} == before
    made_by = encoded.columns["latents"].autoencoder
    manifest = json.loads((encoded.path / "store.json").read_text())
    assert (made_by.source, made_by.scaling_factor, made_by.shift_factor) == (str(place), 0.5, 0.1)
    weights = (place / "diffusion_pytorch_model.safetensors").read_bytes()
    assert made_by.sha256 == hashlib.sha256(weights).hexdigest()
    assert manifest["version"] == FORMAT_VERSION
    assert manifest["columns"]["image"]["autoencoder"] is None
    assert encode_store(images, autoencoder=str(place)).outcome == "unchanged"


def test_log_variances_are_clamped(images, tmp_path, diffusers):
    place = write_autoencoder(tmp_path / "vae")
    network = diffusers.AutoencoderKL.from_pretrained(place)
    with torch.no_grad():
        network.quant_conv.bias[4:6], network.quant_conv.bias[6:] = 100.0, -100.0
    network.save_pretrained(place)
    latents = encode_store(images, autoencoder=str(place)).store.tensor("latents")
    assert (latents[:, 4:6] == 20).all() and (latents[:, 6:] == -30).all()


def test_what_cannot_be_encoded(images, tmp_path, monkeypatch):
    place = str(write_autoencoder(tmp_path / "vae"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"_class_name": "VQModel"}')
    (tmp_path / "other" / "diffusion_pytorch_model.safetensors").touch()
    grey = write_images(tmp_path / "grey", (1, 16, 16))
    odd = write_images(tmp_path / "odd", (3, 15, 16))
    file = shutil.copytree(place, tmp_path / "lacking") / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["decoder.conv_out.bias"]
    save_file(tensors, file)
    encoded = encode_store(images, autoencoder=place).store.path
    for store, name, message in (
        (images, "other", r"other holds no AutoencoderKL \(its config.json names VQ"),
        (
            grey,
            "vae",
            r"vae needs RGB images of 8 bits, and .*grey holds image uint8 \(1, 16, 16\)",
        ),
        (
            odd,
            "vae",
            "makes a latent of 2 x 2 pixels, which do not tile the 15 x 16 of .*odd; import the data",
        ),
        (
            images,
            "lacking",
            r"lacking lacks weights of its network \(decoder\.conv_out\.bias, 1 in all\)",
        ),
        (encoded, "vae", "holds latents already; encode the store that it was made from"),
    ):
        with refused(message):
            encode_store(store, autoencoder=str(tmp_path / name))
    other = str(shutil.copytree(place, tmp_path / "uninstalled"))
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with refused(r"need the library diffusers, .*ditlab\[hub\]"):
        encode_store(images, autoencoder=other)
