"""Figures on given features: equality with torchmetrics, plain forms of the papers' formulas, and
closed forms.
"""

import math

import pytest
import torch

from ditlab.quality.features import kernel_distance, moments
from ditlab_addons.figures.images import estimates
from support.damage import refused


def points(num, dim, seed, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, dim, generator=generator, dtype=torch.float64) + shift


def features_as_they_are(width):
    network = torch.nn.Identity()
    network.num_features = width
    return network


def compare(theirs, real, generated):
    theirs.update(real, real=True)
    theirs.update(generated, real=False)


def test_frechet_distance_is_torchmetrics_number():
    image = pytest.importorskip("torchmetrics.image.fid")
    real, generated = points(300, 16, 0), 1.2 * points(200, 16, 1, 0.3)
    theirs = image.FrechetInceptionDistance(feature=features_as_they_are(16))
    compare(theirs.set_dtype(torch.float64), real, generated)
    found = estimates.frechet(moments(real), generated)
    assert found.value == pytest.approx(float(theirs.compute()), rel=1e-6)
    assert found.low < found.value < found.high


def test_kernel_distance_of_all_points_is_torchmetrics_number():
    """Theirs is a mean over subsets: one of all points is the estimate itself."""
    image = pytest.importorskip("torchmetrics.image.kid")
    real, generated = points(150, 8, 0), points(150, 8, 1, 0.5)
    options = {"subsets": 1, "subset_size": 150}
    theirs = image.KernelInceptionDistance(feature=features_as_they_are(8), **options)
    compare(theirs, real, generated)
    found = estimates.mmd(real, generated)
    assert found.value == pytest.approx(float(theirs.compute()[0]), rel=1e-6)
    assert found.value == pytest.approx(kernel_distance(real, generated).value, rel=1e-12)
    assert found.low < found.value < found.high


def test_cmmd_is_the_papers_formula(monkeypatch):
    """Blocks smaller than the sets, too."""
    x, y = points(7, 3, 0).tolist(), points(5, 3, 1, 4.0).tolist()
    kernel = lambda a, b: math.exp(-(math.dist(a, b) ** 2) / (2 * 10**2))  # noqa: E731
    within = [
        sum(kernel(a, b) for i, a in enumerate(z) for j, b in enumerate(z) if i != j)
        / (len(z) * (len(z) - 1))
        for z in (x, y)
    ]
    expected = sum(within) - 2 * sum(kernel(a, b) for a in x for b in y) / (len(x) * len(y))
    monkeypatch.setattr(estimates, "BLOCK", 3)
    found = estimates.mmd(
        *map(torch.DoubleTensor, (x, y)), estimates.gaussian, estimates.CMMD_SCALE
    )
    assert found.value == pytest.approx(1000 * expected, rel=1e-9)


def test_figures_of_neighbours_are_the_papers_formulas():
    real, generated = points(120, 3, 0), 0.8 * points(110, 3, 1, 0.4)

    def radius(place, own, k):
        return sorted(math.dist(own[place], other) for i, other in enumerate(own) if i != place)[
            k - 1
        ]

    x, y = real.tolist(), generated.tolist()
    radii = {k: [radius(i, x, k) for i in range(len(x))] for k in (3, 5)}
    of_generated = [radius(j, y, 3) for j in range(len(y))]
    within = {
        k: [[math.dist(a, b) <= radii[k][i] for b in y] for i, a in enumerate(x)] for k in (3, 5)
    }
    expected = {
        "precision": sum(any(row[j] for row in within[3]) for j in range(len(y))) / len(y),
        "recall": sum(
            any(math.dist(a, b) <= r for b, r in zip(y, of_generated, strict=True)) for a in x
        )
        / len(x),
        "density": sum(map(sum, within[5])) / (5 * len(y)),
        "coverage": sum(map(any, within[5])) / len(x),
    }
    found = estimates.neighbour_figures(real, generated)
    assert {name: each.value for name, each in found.items()} == pytest.approx(expected, rel=1e-12)
    assert all(each.low < each.value < each.high for each in found.values())


def test_shares_at_their_end_keep_an_interval_within_it():
    same = points(120, 3, 0)
    found = estimates.neighbour_figures(same, same)["precision"]
    assert found.value == found.high == 1 and 0.9 < found.low < 1


def test_clip_score_is_of_image_and_caption():
    images, captions = torch.eye(4), torch.eye(4)[[0, 1, 3, 2]]
    captions[1] = torch.tensor([0.0, 3.0, 4.0, 0.0])  # cosine 0.6
    captions[3] = -torch.eye(4)[3]  # below 0 counts as 0
    assert estimates.clip_score(images, captions).value == pytest.approx(
        2.5 * (1 + 0.6 + 0 + 0) / 4
    )
    with refused(r"quality/clip_score needs a caption for each image, and there are 0 captions"):
        estimates.clip_score(images, captions[:0])
