"""Figures on given features: equality with torchmetrics, plain forms of the papers' formulas, and
closed forms.
"""

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
    x, y = points(7, 3, 0), points(5, 3, 1, 4.0)

    def kernel(a, b):
        return torch.exp(-(torch.cdist(a, b) ** 2) / (2 * 10**2))

    within = [(kernel(z, z).sum() - len(z)) / (len(z) * (len(z) - 1)) for z in (x, y)]
    expected = float(sum(within) - 2 * kernel(x, y).mean())
    monkeypatch.setattr(estimates, "BLOCK", 3)
    found = estimates.mmd(x, y, estimates.gaussian, estimates.CMMD_SCALE)
    assert found.value == pytest.approx(1000 * expected, rel=1e-9)


def test_figures_of_neighbours_are_the_papers_formulas():
    real, generated = points(120, 3, 0), 0.8 * points(110, 3, 1, 0.4)

    def within(own, other, k):
        """Return for each of the others if it lies in the ball of a point to its k-th neighbour."""
        radii = torch.cdist(own, own).sort(1).values[:, k : k + 1]  # the first one is itself
        return (torch.cdist(own, other) <= radii).double()

    of_five = within(real, generated, 5)
    expected = {
        "precision": within(real, generated, 3).amax(0).mean(),
        "recall": within(generated, real, 3).amax(0).mean(),
        "density": of_five.sum() / (5 * len(generated)),
        "coverage": of_five.amax(1).mean(),
    }
    found = estimates.neighbour_figures(real, generated)
    for name, value in expected.items():
        assert found[name].value == pytest.approx(float(value), rel=1e-12)
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
