"""Exports: safetensors weights and the spec that rebuilds the network around them."""

import hashlib
import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ditlab.checkpoints.store import open_checkpoint
from ditlab.spec.files import load_experiment
from ditlab.training.export import export_weights, load_checked, load_network
from support.trainings.workers import tiny, train_here

CPU = torch.device("cpu")
PRIVATE = {"uri": "http://private-host:5000", "system_metrics": False}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train_here(tiny(tracking=PRIVATE), folder / "home", folder / "checkpoints")
    return folder / "checkpoints" / "step-00000006"


def outputs(network):
    x, t = (
        torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0.1, 0.5, 0.9]),
    )
    with torch.no_grad():
        return network(x, t)


@pytest.mark.parametrize("averaged", [True, False])
def test_a_fresh_network_computes_the_same(checkpoint, tmp_path, averaged):
    weights, _ = export_weights(checkpoint, tmp_path / "out", averaged)
    reader = open_checkpoint(checkpoint)
    assert all(
        torch.equal(value, reader.weights(averaged)[name])
        for name, value in load_file(weights).items()
    )
    experiment, network = load_checked(tmp_path / "out", CPU)
    expected = load_network(experiment, reader.weights(averaged), CPU)
    assert torch.equal(outputs(network), outputs(expected)) and outputs(network).abs().max() > 0
    assert experiment.model == tiny().model


def test_averaged_and_raw_differ(checkpoint, tmp_path):
    networks = []
    for averaged in (True, False):
        export_weights(checkpoint, tmp_path / str(averaged), averaged)
        networks.append(load_checked(tmp_path / str(averaged), CPU)[1])
    assert not torch.equal(outputs(networks[0]), outputs(networks[1]))


def test_the_spec_is_an_experiment_without_private_places(checkpoint, tmp_path):
    _, spec = export_weights(checkpoint, tmp_path)
    assert "private-host" not in spec.read_text()
    experiment = load_experiment(spec)
    assert experiment.content_hash() == tiny().content_hash()
    assert (experiment.tracking.uri, experiment.checkpoint.storage) == (None, None)


def test_the_file_says_what_it_is(checkpoint, tmp_path):
    weights, _ = export_weights(checkpoint, tmp_path)
    with safe_open(weights, framework="pt") as file:
        metadata = file.metadata()
    hashes = json.loads(metadata.pop("sha256"))
    assert metadata == {"format": "pt", "family": "dit", "step": "6"}
    assert hashes.keys() == {"content", "spec.yaml"}
    assert hashes["spec.yaml"] == hashlib.sha256((tmp_path / "spec.yaml").read_bytes()).hexdigest()


def test_a_run_without_an_average_exports_its_weights(tmp_path):
    train_here(tiny(training={"steps": 2, "ema": None}), tmp_path / "home", tmp_path / "run")
    weights, _ = export_weights(tmp_path / "run" / "step-00000002", tmp_path / "out")
    reader = open_checkpoint(tmp_path / "run" / "step-00000002")
    assert not reader.has("ema")
    assert all(
        torch.equal(value, reader.weights(False)[name])
        for name, value in load_file(weights).items()
    )
