"""Unusable checkpoints are refused in one sentence, before anything starts."""

import builtins
import contextlib
import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from ditlab.encoders.image import FrozenImageEncoder
from ditlab.encoders.text import FrozenTextEncoder
from ditlab.errors import UserError
from support import special_files
from support.damage import bit_flips, mutations, refused
from support.datasets.tiny_encoders import write_image_encoder, write_text_encoder


@pytest.fixture
def text(text_folder, tmp_path):
    """Copy of a checkpoint to break."""
    return Path(shutil.copytree(text_folder, tmp_path / "qwen"))


def refused_text(folder, *words, width=32, **how):
    with pytest.raises(UserError) as caught:
        FrozenTextEncoder(str(folder), width, 16, **how)
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


def edit(file, **changes: object):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("missing", "word"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokeniser"),
    ],
)
def test_incomplete_folders(text, missing, word):
    (text / missing).unlink()
    refused_text(text, f"encoders.text={text}", f"no {word}", "save_pretrained")


def test_a_shard_that_is_missing(text):
    (text / "model.safetensors").unlink()
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    (text / "model.safetensors.index.json").write_text(json.dumps(index))
    (text / "model-00001-of-00002.safetensors").touch()
    refused_text(text, "holds no model-00002-of-00002.safetensors,")


@pytest.mark.parametrize("kind", ["pipe", "device", "circle", "dangling"])
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_special_files_are_not_waited_for(text, name, kind):
    special_files.put(kind, text / name)
    refused_text(text, f"encoders.text={text}: {name} cannot be read")


INDICES = (
    "[",
    "[" * 10**5,
    "null",
    "{}",
    '{"weight_map": 1}',
    '{"weight_map": {"a": 1}}',
    '{"weight_map": {"a": "../a"}}',
)


@pytest.mark.parametrize("index", INDICES, ids=range(len(INDICES)))
def test_an_index_of_weights_that_is_damaged(text, index):
    (text / "model.safetensors").unlink()
    (text / "model.safetensors.index.json").write_text(index)
    refused_text(text, "model.safetensors.index.json cannot be read")


def test_damaged_configurations_end_in_a_sentence(text):
    config = (text / "config.json").read_bytes()
    for damaged in (*mutations(config, 30), *bit_flips(config, 10)):
        (text / "config.json").write_bytes(damaged)
        with contextlib.suppress(UserError):
            FrozenTextEncoder(str(text), None, 16)


def test_weights_that_lack_a_tensor_are_not_drawn_at_random(text):
    weights = load_file(text / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, text / "model.safetensors", metadata={"format": "pt"})
    refused_text(text, "lacks weights", "layers.1.mlp.up_proj.weight, 1 in all")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: os.truncate(text / "model.safetensors", 1000), "cannot be read by tran"),
        (
            lambda text: (text / "model.safetensors").rename(text / "pytorch_model.bin"),
            "no weights (model.safetensors)",
        ),
        (lambda text: edit(text / "config.json", model_type="qwen99"), "qwen99"),
        (
            lambda text: edit(text / "tokenizer_config.json", pad_token=None),
            "with the token None, and a caption is padded behind its end; set padding_side to",
        ),
    ],
    ids=["cut weights", "pickled weights", "an unknown architecture", "no padding token"],
)
def test_what_is_no_whole_checkpoint_is_refused(text, change, words):
    change(text)
    refused_text(text, words)


def test_a_width_that_is_not_the_models(text):
    refused_text(text, "gives 32 features", "model.width=48", "set model.width to 32", width=48)
    FrozenTextEncoder(str(text), None, 16)


def test_padding_on_the_left(tmp_path):
    folder = write_text_encoder(tmp_path / "left", padding_side="left")
    refused_text(
        folder,
        "pads on the left",
        "set padding_side to right and a pad_token in its tokenizer_config.json",
    )
    edit(folder / "tokenizer_config.json", padding_side="right")
    FrozenTextEncoder(str(folder), 32, 16)


def test_names_that_cannot_be_fetched(tmp_path, monkeypatch):
    def unreachable(*inputs, **named):
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    refused_text(
        "Qwen/Qwen3-0.6B",
        "encoders.text=Qwen/Qwen3-0.6B is no folder here",
        "not known",
        downloads=tmp_path,
    )
    monkeypatch.undo()
    refused_text("/no/such/folder", "the Hugging Face hub does not give it", downloads=tmp_path)


def test_messages_name_the_flag(tmp_path):
    refused_text(tmp_path, f"--encode-text={tmp_path}", option="--encode-text")


def test_images_need_a_dinov3(text, image_folder, tmp_path):
    with refused(r"encoders\.image=.* of the kind qwen3, .* name a DINOv3"):
        FrozenImageEncoder(str(text), 24, 4)
    with refused(r"patches of 4 pixels, and the model's have 16; set model\.patch_size to 4"):
        FrozenImageEncoder(str(image_folder), 24, 16)
    with refused(r"24 features a patch, .* set objective\.alignment_width to 24"):
        FrozenImageEncoder(str(image_folder), 768, 4)
    with refused(r"holds no config\.json and no weights"):
        FrozenImageEncoder(str(tmp_path), 24, 4)
    assert (
        FrozenImageEncoder(str(write_image_encoder(tmp_path / "wide", width=32)), None, 4).width
        == 32
    )


def test_without_transformers(text_folder, monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **named):
        if name.split(".")[0] == "transformers":
            raise ImportError(f"No module named '{name}'")
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    refused_text(
        text_folder, "transformers, which is not installed", "pip install 'ditlab[encoders]'"
    )
