"""Inception v3 of FID: the published weights' layout, and torch-fidelity's features and FID under
the same weights.
"""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from ditlab.home import Home
from ditlab_addons.figures.images import estimates
from ditlab_addons.figures.images.image_sets import measure_images
from ditlab_addons.figures.images.published import features_named
from ditlab_addons.figures.networks.inception import Inception, resize_like_tensorflow

LAYOUT = "760681d791cb624e1bf7a2e802a68933dd17aa5e3109fcf498d9dfa521bc10d7"
"""SHA-256 of the lines `name shape` of torch-fidelity 0.4.0's network, sorted."""


def write_weights(path):
    """Random weights under which features depend on the image."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Inception()
        for module in network.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight)
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
    torch.save(network.state_dict(), path)
    return path


def test_layout_is_that_of_the_published_weights():
    with torch.device("meta"):
        state = Inception().state_dict()
    lines = "\n".join(f"{name} {tuple(each.shape)}" for name, each in sorted(state.items()))
    assert hashlib.sha256(lines.encode()).hexdigest() == LAYOUT


def test_images_are_resized_from_corner_to_corner():
    """TensorFlow 1 reads place i x in / out: the first pixel stays, the last places repeat the last
    pixel.
    """
    ramp = torch.arange(4.0).expand(1, 1, 4, 4)
    assert resize_like_tensorflow(ramp, 8)[0, 0, 0].tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3]
    assert torch.equal(resize_like_tensorflow(ramp, 4), ramp)


@pytest.mark.slow
def test_fid_of_folders_of_pictures_is_that_of_torch_fidelity(tmp_path, monkeypatch):
    """The command of torch-fidelity prints our FID of PNGs under the same weights; skipped where
    that is missing.
    """
    pytest.importorskip(
        "torch_fidelity", reason="torch-fidelity is not installed, so nothing is compared with it"
    )
    monkeypatch.setattr(estimates, "GROUPS", 2)  # each takes seconds, and no interval is compared
    monkeypatch.setattr(estimates, "FEWEST", 24)
    weights = write_weights(tmp_path / "inception.pth")
    generator = np.random.default_rng(0)
    for name, level in (("a", 90), ("b", 140)):
        (tmp_path / name).mkdir()
        for number in range(24):
            small = generator.integers(0, level, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(small).resize((32, 32)).save(tmp_path / name / f"{number:03}.png")
    options = (
        "--fid --input1 b --input2 a --cpu --json --silent --no-cache "
        "--feature-extractor-weights-path inception.pth"
    )
    command = [sys.executable, "-m", "torch_fidelity.fidelity", *options.split()]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    theirs = float(
        said.partition('"frechet_inception_distance":')[2].strip(" \n}").split(",")[0].strip()
    )
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    spec = features_named({"kind": "inception", "weights": str(weights), "sha256": digest})
    places = str(tmp_path / "b"), spec, str(tmp_path / "a")
    found = measure_images(*places, Home(tmp_path / "home"), torch.device("cpu"))
    assert found.figures["fid"].mean == pytest.approx(theirs, rel=1e-4)
