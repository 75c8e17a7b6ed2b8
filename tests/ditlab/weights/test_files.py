"""Files of published weights: wrappers, shards, the hub, and what is refused in one sentence."""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ditlab.home import Home
from ditlab.weights.files import WeightFiles
from ditlab.weights.published import PublishedWeights
from support.command import run_inside
from support.damage import refused
from support.models.published_networks import get_shapes, random_weights

GET = random_weights(get_shapes(5, 64, 1), dtype=torch.float32)


def opened(place):
    return PublishedWeights.open(str(place), "PATH", Home(place.parent))


def read(path):
    tensors, choices = WeightFiles.find(str(path), "PATH", Home(path.parent / "home")).read()
    return tensors, ", ".join(map(str, choices))


@pytest.mark.parametrize(
    ("content", "taken"),
    [
        (GET, ""),
        (
            {"state_dict": {f"model.{name}": each for name, each in GET.items()}, "epoch": 3},
            "its `state_dict`, names without `model.`",
        ),
        (
            {
                "model": {name: each + 1 for name, each in GET.items()},
                "ema": GET,
                "opt": {"state": {}, "param_groups": []},
                "args": argparse.Namespace(lr=1e-4, layers=[1, 2]),
            },
            "its `ema`, not its `model`",
        ),
        (
            {"model": {f"module._orig_mod.{name}": each for name, each in GET.items()}},
            "its `model`, names without `module.`, names without `_orig_mod.`",
        ),
    ],
)
def test_wrappers_are_taken_off_and_named(content, taken, tmp_path):
    torch.save(content, tmp_path / "file.pt")
    tensors, said = read(tmp_path / "file.pt")
    assert said == taken
    assert tensors.keys() == GET.keys() and all(
        torch.equal(tensors[name], GET[name]) for name in GET
    )


def write_shards(folder):
    folder.mkdir()
    names = sorted(GET)
    parts = {"model-1.safetensors": names[:10], "model-2.safetensors": names[10:]}
    for file, own in parts.items():
        save_file({name: GET[name] for name in own}, folder / file)
    index = {
        "metadata": {},
        "weight_map": {name: file for file, own in parts.items() for name in own},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in parts}


def test_shards_are_read_by_their_index(tmp_path):
    hashes = write_shards(tmp_path / "sharded")
    found = opened(tmp_path / "sharded")
    assert (
        found.format.name == "get"
        and found.tensors.keys() == GET.keys()
        and found.files.hashes == hashes
    )
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    assert found.files.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    (tmp_path / "sharded/model-2.safetensors").unlink()
    with refused(r"lacks 1 of 2 shards \(model-2\.safetensors\); fetch them too\."):
        read(tmp_path / "sharded")
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (tmp_path / "sharded/model.safetensors.index.json").write_text(json.dumps(index))
    with refused("it names no files of this folder"):
        read(tmp_path / "sharded")


def test_bad_files_are_one_sentence(tmp_path):
    def refuse(name, said):
        with refused(said):
            opened(tmp_path / name)

    refuse("none", "is not there; name a file or folder of weights, or hf://OWNER/NAME@REVISION")
    (tmp_path / "empty").mkdir()
    refuse(
        "empty", r"holds no file of weights \(\*\.safetensors, \*\.pt, \*\.pth, \*\.bin, \*\.ckpt\)"
    )
    (tmp_path / "weights.npz").write_bytes(b"PK")
    refuse("weights.npz", "is no file of weights")
    (tmp_path / "cut.safetensors").write_bytes((100).to_bytes(8, "little") + b"{")
    refuse("cut.safetensors", r"cut\.safetensors cannot be read \(.*\); name whole files")
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04 cut")
    refuse("cut.pt", r"cut\.pt holds more than tensors, or is damaged \(\w")
    torch.save(torch.zeros(2), tmp_path / "one.pt")
    refuse("one.pt", "holds no tensors by name")
    save_file({"lin.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    refuse(
        "other.safetensors",
        r"the layout of no known format \(diffusers_dit, .*, sit\): 1 tensors, lin\.weight",
    )
    for name in ("one", "two"):
        torch.save(GET, tmp_path / "empty" / f"{name}.pt")
    refuse("empty", r"holds 2 files of weights \(one\.pt, two\.pt\); name one of them\.")
    (tmp_path / "link.safetensors").symlink_to("/dev/zero")
    refuse("link.safetensors", "cannot be read")


def test_a_link_is_read_by_its_own_name(tmp_path):
    """Caches of the hub link to files without an ending."""
    save_file(GET, tmp_path / "blob")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert read(tmp_path / "model.safetensors")[0].keys() == GET.keys()


def test_a_hub_that_does_not_answer_names_the_folder_to_fill(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")

    def unreachable(*inputs: Any, **named: Any):
        raise OSError("Name or service not known")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    home, place = Home(tmp_path), "hf://ann/get@v1"
    filled = home.caches / "weights" / "ann" / "get@v1"
    with refused(f"does not give it .*service not known.*; .* put them into {filled}"):
        PublishedWeights.open(place, "PATH", home)
    filled.mkdir(parents=True)
    save_file(GET, filled / "model.safetensors")
    assert PublishedWeights.open(place, "PATH", home).format.name == "get"
    assert PublishedWeights.open(f"{place}/model.safetensors", "PATH", home).format.name == "get"
    for wrong in ("hf://ann", "hf://ann/get@v1/../../x", "hf://ann/get/a/b/../../../../x"):
        with refused("names no weights on the Hugging Face hub; write hf://OWNER/NAME@REVISION"):
            PublishedWeights.open(wrong, "PATH", home)


def test_the_hubs_commit_is_recorded_and_asked_for_again(tmp_path, monkeypatch):
    """The client is a stub that lays files out as the hub's cache does: a folder a commit."""
    pytest.importorskip("huggingface_hub")
    asked = []

    def snapshot(name, *, revision, allow_patterns, cache_dir, **_: Any):
        asked.append((name, revision))
        folder = (
            Path(cache_dir)
            / "snapshots"
            / (revision if revision and len(revision) == 40 else "c" * 40)
        )
        folder.mkdir(parents=True, exist_ok=True)
        if "*.pt" in allow_patterns:
            torch.save(GET, folder / "get.pt")
        if "part/*.safetensors" in allow_patterns:
            (folder / "part").mkdir(exist_ok=True)
            save_file(GET, folder / "part" / "model.safetensors")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    found = WeightFiles.find("hf://ann/get@main", "PATH", Home(tmp_path))
    assert found.revision == "c" * 40 and found.read()[0].keys() == GET.keys()
    WeightFiles.find("hf://ann/get@main", "PATH", Home(tmp_path), found.revision)
    assert [
        each.name for each in WeightFiles.find("hf://ann/get/part", "PATH", Home(tmp_path)).paths
    ] == ["model.safetensors"]
    assert asked[0] == ("ann/get", "main") and asked[-2] == ("ann/get", "c" * 40)


def test_the_command_tells_format_spec_and_what_fits(tmp_path):
    torch.save({"model": GET}, tmp_path / "get.pth")
    said = run_inside(
        "weights", "inspect", str(tmp_path / "get.pth"), "--json", home=tmp_path / "home"
    )
    digest = hashlib.sha256((tmp_path / "get.pth").read_bytes()).hexdigest()
    found = said.json
    assert (found["format"], found["fits"], found["files"]) == ("get", True, {"get.pth": digest})
    assert found["command"][2:] == ["--set", f"model.init.from={tmp_path / 'get.pth'}"]
    part = {name: each for name, each in GET.items() if not name.startswith("head_mask")}
    save_file({**part, "extra": torch.zeros(1)}, tmp_path / "part.safetensors")
    said = run_inside(
        "weights", "inspect", str(tmp_path / "part.safetensors"), home=tmp_path / "home"
    )
    assert said.code == 1
    assert (
        "does not fit the network in 3 tensors: head.weight is missing; head.bias is "
        "missing; extra has no"
    ) in said.out
    assert "  family: region\n" in said.out and "    from: " in said.out
