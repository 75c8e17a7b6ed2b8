"""Reference statistics that are none are refused, and those of other pictures are told; samples
that are not finite have no figures."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from ditlab.home import Home
from ditlab.quality.figures import ComparedSamples
from ditlab_addons.figures.images.published import (
    PublishedFigures,
    Statistics,
    features_named,
    read_npz,
)
from support.damage import refused
from support.datasets.figure_images import asked, images_of

pytest.importorskip("transformers")

CPU = torch.device("cpu")


MU = np.zeros(8)
SIGMA = np.eye(8)


def changed(values, place, value):
    found = values.copy()
    found[place] = value
    return found


FAULTS = {
    "NaN in mu": ({"mu": changed(MU, 3, np.nan)}, "1 values of mu that are not finite"),
    "negative variance": ({"sigma": changed(SIGMA, (2, 2), -1.0)}, "the eigenvalue -1, so no"),
    "not symmetric": ({"sigma": changed(SIGMA, (0, 1), 0.5)}, "not symmetric (by 0.5)"),
    "complex": ({"mu": MU.astype(complex)}, "mu of complex128, no real numbers"),
    "another width": ({"mu": np.zeros(7)}, "which do not fit"),
    "mu alone": ({"sigma": None}, "neither images (arr_0) nor statistics"),
    "no count": ({"num": np.array("many")}, "facts that cannot be read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_statistics_that_are_none(fault, dinov2, tmp_path):
    changes, words = FAULTS[fault]
    arrays = {"mu": MU, "sigma": SIGMA, **changes}
    file = tmp_path / "faulty.npz"
    np.savez(file, **{name: each for name, each in arrays.items() if each is not None})
    spec = features_named(asked("dinov2", dinov2, reference=str(file)))
    with refused(f"faulty.npz.*{re.escape(words)}"):
        PublishedFigures(spec, Home(tmp_path / "home")).reference("", list, CPU)


def test_covariances_in_single_precision_are_covariances(tmp_path):
    features = np.random.default_rng(0).normal(size=(40, 64))  # of rank 39
    sigma = np.cov(features.T).astype(np.float32)
    np.savez(tmp_path / "whole.npz", mu=features.mean(0).astype(np.float32), sigma=sigma)
    assert read_npz(tmp_path / "whole.npz", "whole")["sigma"].dtype == np.float32


@pytest.fixture
def measured(dinov2, tmp_path):
    """`measured(changes)` measures 100 images against statistics of 100 others, with other facts."""
    plain = PublishedFigures(features_named(asked("dinov2", dinov2)), Home(tmp_path / "home"))
    features = list(plain.features([((images_of(100, 3) + 1) * 127.5).byte()], CPU))
    whole = Statistics.of(features).made_with(plain.network_digest, {(16, 16)})

    def measure(values=None, **changes):
        file = tmp_path / "given.npz"
        file.write_bytes(replace(whole, **changes).to_npz())
        spec = features_named(asked("dinov2", dinov2, reference=str(file)))
        said = []
        samples = ComparedSamples(
            values or [images_of(100, 4)], list, "none", CPU, warn=said.append
        )
        found = PublishedFigures(spec, Home(tmp_path / "home")).measure(samples)
        return found, [each for each in said if "biased" not in each]

    return measure


def test_statistics_of_the_same_network_and_size_are_compared_in_silence(measured):
    found, said = measured()
    assert found["quality/fd_dinov2"] > 0 and said == []


def test_statistics_of_another_network_are_refused(measured):
    with refused("is of the network 0123456789ab, and kind=dinov2"):
        measured(network="0123456789abcdef")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sizes": ((32, 32),)}, "of pictures of 32 x 32, and those that are measured are of 16"),
        ({"sizes": ((16, 16), (24, 16))}, "of pictures of 16 x 16, 24 x 16"),
        ({"network": "", "sizes": (), "num": 0}, "does not say its network, its pictures' size"),
    ],
)
def test_what_a_reference_leaves_open_or_has_otherwise_is_told(measured, changes, words):
    found, (said,) = measured(**changes)
    assert found["quality/fd_dinov2"] > 0 and words in said


def test_samples_that_are_not_finite_have_no_figures(measured):
    images = images_of(100, 4)
    images[7, 0, 0, 0] = math.inf
    found, (said,) = measured([images])
    assert said.startswith("1 of 100 samples hold values that are not finite (NaN)")
    assert found and all(map(math.isnan, found.values()))
