"""Data sets of the Hugging Face hub as sources, from a server on loopback that answers as the hub
does.
"""

import socket
import sys
from importlib import import_module

import pytest

from ditlab.spec.importing import ImagesOptions
from ditlab.storage.remote import RemoteFiles
from support.command import run_process
from support.damage import refused
from support.datasets.photographs import encoded, parquet_file, smooth
from support.object_store.hub import hub_at_hand

TOKEN = "hf_" + "abcdefghij" * 3
SQUARES = ("--sizes", "square", "--resolution", "16", "--patch", "4", "--json")


@pytest.fixture
def dataset(tmp_path):
    """Two splits of images with captions in Parquet, of 3 and 2 rows, and the files about them."""
    folder = tmp_path / "repository"
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\n")
    for split, num in (("train", 3), ("test", 2)):
        images = [{"bytes": encoded(smooth(20, 20, n)), "path": None} for n in range(num)]
        name = f"{split}-00000-of-00001.parquet"
        parquet_file(
            folder / "data" / name, image=images, caption=[f"slope {n}" for n in range(num)]
        )
    return folder


def imported(home, kind, source, *options, **environment):
    return run_process(
        "data", "import", kind, "--source", source, *options, home=home, **environment
    )


@pytest.mark.slow
def test_images_and_texts_of_a_data_set(tmp_path, dataset):
    with hub_at_hand(dataset) as endpoint:
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
        place = "hf://datasets/ann/pets@refs/convert/parquet/data/train-*.parquet"
        one = imported(tmp_path / "home", "images", place, *SQUARES, **environment)
        (store,) = one.ok().json["stores"]
        assert (store["name"], store["rows"]) == ("images-pets-16", 3)
        assert "read from pets;" in store["note"]
        file = str(dataset / "data" / "train-00000-of-00001.parquet")
        local = imported(tmp_path / "local", "images", file, *SQUARES)
        assert local.json["stores"][0]["fingerprint"] == store["fingerprint"]
        options = ("--column", "caption", "--length", "4", "--json")
        whole = imported(
            tmp_path / "home", "text", "hf://datasets/ann/pets", *options, **environment
        )
        (found,) = whole.ok().json["stores"]
        assert found["name"] == "text-pets-bytes-4"
        assert found["receipt"]["levels"][0]["used"] == {"read": 2}
        none = imported(tmp_path / "home", "text", "hf://datasets/ann/dogs", **environment)
        none.refused("shows no such data set or path; correct it, or set HF_TOKEN")


@pytest.mark.slow
def test_a_private_data_set_needs_the_token_of_the_environment(tmp_path, dataset):
    with hub_at_hand(dataset, TOKEN) as endpoint:
        place = "hf://datasets/ann/pets/data/test-*.parquet"
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
        asked = (tmp_path / "home", "images", place, *SQUARES)
        imported(*asked, **environment).refused("set HF_TOKEN if it is private.")
        given = imported(*asked, **environment, HF_TOKEN=TOKEN).ok()
        assert given.json["stores"][0]["rows"] == 2 and TOKEN not in given.out + given.err


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_a_sentence(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        said = imported(tmp_path / "home", "text", "hf://datasets/ann/pets", HF_ENDPOINT=endpoint)
    words = "--source=hf://datasets/ann/pets cannot be listed ("
    said.refused(words, "check address, network and")


def test_a_token_in_a_uri_is_refused_and_not_repeated():
    for source in (
        f"hf://{TOKEN}@datasets/ann/pets",
        f"hf://ann:{TOKEN}@datasets/ann/pets",
        f"hf://datasets/a/b?token={TOKEN}",
    ):
        with pytest.raises(
            ValueError, match=r"--source=hf://\.\.\. holds a password or key.*HF_TOKEN"
        ) as caught:
            ImagesOptions(source=source)
        assert TOKEN not in caught.value.errors()[0]["msg"]


def test_the_library_of_the_hub_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(import_module("fsspec.registry")._registry, "hf", raising=False)
    with refused(
        r"needs a library that is not installed .*`pip install 'ditlab\[hub\]'` brings it"
    ):
        RemoteFiles.open("--source", "hf://datasets/ann/pets")
