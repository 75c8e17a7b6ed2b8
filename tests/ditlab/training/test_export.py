"""Exports: weights and the spec that rebuilds the network around them, the same bytes for the same
weights, and no changed byte that is not noticed.
"""

import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ditlab.checkpoints.store import open_checkpoint
from ditlab.data.text.tokenizer import TOKENIZER_NAME, ByteTokenizer
from ditlab.errors import UserError
from ditlab.spec.files import load_experiment
from ditlab.training.export import (
    check_export,
    export_weights,
    load_checked,
    load_network,
    read_facts,
    write_weights,
)
from support.damage import refused
from support.marks import slow
from support.trainings.workers import same_tensors, tiny, train_here

CPU = torch.device("cpu")
EXPORT = """
import sys
from pathlib import Path
from ditlab.training.export import export_weights
export_weights(sys.argv[1], Path(sys.argv[2]), tokenizer=Path(sys.argv[3]))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train_here(
        tiny(tracking__uri="http://private-host:5000"), folder / "home", folder / "checkpoints"
    )
    (folder / TOKENIZER_NAME).write_bytes(ByteTokenizer().content)
    return folder / "checkpoints" / "step-00000006"


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    export_weights(checkpoint, folder, tokenizer=checkpoint.parents[1] / TOKENIZER_NAME)
    return folder


@pytest.fixture
def copy(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def load(folder):
    """Load an export; returns the warnings."""
    warnings = []
    check_export(folder, warnings.append)
    load_checked(folder, CPU)
    return warnings


def outputs(network):
    x = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return network(x, torch.tensor([0.1, 0.5, 0.9]))


def test_a_fresh_network_computes_the_same(checkpoint, tmp_path):
    """Of averaged weights and of trained ones, which differ."""
    reader, found = open_checkpoint(checkpoint), []
    for averaged in (True, False):
        folder = tmp_path / str(averaged)
        weights, _ = export_weights(checkpoint, folder, averaged)
        assert same_tensors(load_file(weights), reader.weights(averaged))
        experiment, network = load_checked(folder, CPU)
        assert experiment.model == tiny().model
        found.append(outputs(network))
        expected = load_network(experiment, reader.weights(averaged), CPU)
        assert torch.equal(found[-1], outputs(expected)) and found[-1].abs().max() > 0
    assert not torch.equal(*found)


def test_the_spec_is_an_experiment_without_private_places(exported):
    spec = exported / "spec.yaml"
    assert "private-host" not in spec.read_text()
    experiment = load_experiment(spec)
    assert experiment.content_hash() == tiny().content_hash()
    assert (experiment.tracking.uri, experiment.checkpoint.storage) == (None, None)


def test_the_file_says_what_it_is(exported):
    with safe_open(exported / "weights.safetensors", framework="pt") as file:
        metadata = file.metadata()
    hashes = json.loads(metadata.pop("sha256"))
    assert metadata == {"format": "pt", "family": "dit", "step": "6"}
    assert hashes.keys() == {"content", "spec.yaml", TOKENIZER_NAME}
    spec = (exported / "spec.yaml").read_bytes()
    assert hashes["spec.yaml"] == hashlib.sha256(spec).hexdigest()


def test_a_run_without_an_average_exports_its_weights(tmp_path):
    train_here(tiny(training__steps=2, training__ema=None), tmp_path / "home", tmp_path / "run")
    weights, _ = export_weights(tmp_path / "run" / "step-00000002", tmp_path / "out")
    reader = open_checkpoint(tmp_path / "run" / "step-00000002")
    assert not reader.has("ema") and same_tensors(load_file(weights), reader.weights(False))


@pytest.mark.slow
def test_exports_in_two_processes_are_equal_byte_for_byte(checkpoint, exported, tmp_path):
    """The library's own writer orders metadata by a random hash, in each process another one."""
    tokenizer = checkpoint.parents[1] / TOKENIZER_NAME
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", EXPORT, checkpoint, tmp_path / seed, tokenizer]
        subprocess.run(command, env=environment, check=True, timeout=300)
        for file in exported.iterdir():
            assert (tmp_path / seed / file.name).read_bytes() == file.read_bytes()


def test_metadata_and_tensors_have_one_order(tmp_path):
    tensors = {"b": torch.ones(3).bfloat16(), "a": torch.zeros(2, 0), "n": torch.tensor(7)}
    metadata = {name: name for name in "zyxwvutsrqponm"}
    write_weights(tmp_path / "one", tensors, metadata, [])
    turned = [dict(reversed(each.items())) for each in (tensors, metadata)]
    write_weights(tmp_path / "two", *turned, [])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    torch.testing.assert_close(load_file(tmp_path / "one"), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("num", [300, *slow(None)])
def test_every_flipped_bit_of_the_weights_is_refused(copy, num):
    """One sentence each, for 300 bits of the header and as many of the tensors; in the long test,
    for every bit of the header and 5,000 of the tensors."""
    weights = copy / "weights.safetensors"
    content = weights.read_bytes()
    header = 8 * (8 + int.from_bytes(content[:8], "little"))
    generator = random.Random(0)
    bits = range(header) if num is None else generator.sample(range(header), num)
    bits = [*bits, *generator.sample(range(header, 8 * len(content)), num or 5000)]
    silent = []
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        weights.write_bytes(damaged)
        try:
            read_facts(weights)
        except UserError as error:
            assert str(error).startswith(f"{weights} is damaged (") and "\n" not in str(error)
        else:
            silent.append(bit)
    assert silent == []


def test_a_spec_that_a_person_edited_is_said_and_used(copy):
    spec = copy / "spec.yaml"
    assert load(copy) == []
    spec.write_text(spec.read_text().replace("name: tiny", "name: edited"))
    (warning,) = load(copy)
    assert (
        warning.startswith(f"{spec} was changed after the export") and "as it says now" in warning
    )
    assert load_checked(copy, CPU)[0].name == "edited"
    text = spec.read_text()
    missing = r"does not fit the network of spec\.yaml beside it \(Missing key.*blocks\..*attention"
    other = r"\(size mismatch for [a-z0-9_.]+: .*16777216"
    for knob, value, message in (("depth", 9, missing), ("width", 1 << 24, other)):  # 4 PiB
        spec.write_text(re.sub(f"{knob}: [0-9]+", f"{knob}: {value}", text))
        with refused(message):
            load(copy)
    spec.write_bytes(b"\xff\xfe")
    with refused(r"spec\.yaml.* UTF-8"):
        load(copy)


def test_an_altered_tokeniser_is_refused(copy):
    tokenizer = copy / TOKENIZER_NAME
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    with refused(r"tokenizer\.json was altered: its SHA-256 is not the export's"):
        load(copy)
    tokenizer.unlink()
    with refused(r"tokenizer\.json cannot be read \(No such file or directory\)"):
        load(copy)


def test_weights_of_another_program_are_said(copy):
    weights = copy / "weights.safetensors"
    save_file(load_file(weights), weights)
    (warning,) = load(copy)
    assert "was not written by DiTLab" in warning


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header["__metadata__"].update(step="6e3"), "it was altered"),
        (lambda header: header["__metadata__"].update(sha256="[1]"), ""),
        (lambda header: header["head.bias"].update(data_offsets=[0, 1 << 60]), ""),
        (
            lambda header: header.update(head={"shape": [1]}),
            "its header describes something else than tensors",
        ),
    ],
)
def test_headers_of_the_wrong_form_are_one_sentence(copy, change, message):
    weights = copy / "weights.safetensors"
    content = weights.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    with refused(rf"weights\.safetensors is damaged \({message}"):
        load(copy)
