"""Intervals of image figures by closed forms and simulation, and warnings where few images decide."""

import math

import numpy as np
import pytest
import torch

from ditlab.quality.features import frechet_of_moments, moments
from ditlab_addons.figures.images import estimates
from ditlab_models.intervals import FEWEST_DF, variance_df


def points(num, dim, generator):
    return torch.randn(num, dim, generator=generator, dtype=torch.float64)


def one_direction(num, generator, shift, deviation=4.0, dim=64):
    """Gaussian features of which the first varies more, and is shifted."""
    drawn = points(num, dim, generator)
    drawn[:, 0] = deviation * drawn[:, 0] + shift
    return drawn


def cubic_moment(a, b, deviation, dim):
    """E (x.y / dim + 1)^3 of independent `one_direction` points of shifts a and b."""
    square = deviation**2
    of_a = (1, a, a**2 + square, a**3 + 3 * a * square)
    of_b = (1, b, b**2 + square, b**3 + 3 * b * square)
    first, second, third = (of_a[k] * of_b[k] / dim**k for k in (1, 2, 3))
    cubed = 1 + 3 * first + 3 * second + third
    return cubed + 3 * (1 + first) * (dim - 1) / dim**2


def test_kid_of_one_dominant_direction_holds_the_truth():
    """An interval whose variance follows the estimate alone holds it in 75 % of such draws."""
    generator = torch.Generator().manual_seed(0)
    a, b = 0.0, 1.2
    truth = sum(cubic_moment(x, x, 4.0, 64) for x in (a, b)) - 2 * cubic_moment(a, b, 4.0, 64)
    found = [
        estimates.mmd(one_direction(100, generator, a), one_direction(100, generator, b))
        for _ in range(150)
    ]
    assert np.mean([each.low <= truth <= each.high for each in found]) > 0.89
    values = torch.tensor([each.value for each in found])
    assert abs(values.mean() - truth) < 4 * values.std() / 150**0.5, "the closed form"


def test_kid_that_few_images_carry_is_doubtful():
    """The kernel's cube makes heavy tails of a direction of eight deviations."""
    generator = torch.Generator().manual_seed(0)
    doubtful = []
    for deviation in (8.0, 1.0):
        found = [
            estimates.mmd(*(one_direction(100, generator, 0, deviation) for _ in range(2)))
            for _ in range(20)
        ]
        assert all(each.low <= each.value <= each.high for each in found)
        doubtful.append(np.mean([each.df < FEWEST_DF for each in found]))
    assert doubtful[0] > 0.8 and doubtful[1] == 0


def test_frechet_of_one_feature_counts_the_influences_of_its_closed_form():
    """(m - mu)^2 + (s - sigma)^2 changes by 2 c (m - mu) + c^2 (1 - sigma / s) with a point c from
    the mean."""
    generator = torch.Generator().manual_seed(0)
    reference = moments(points(500, 1, generator))
    drawn = 1.5 * points(300, 1, generator) + 1
    found = estimates.frechet(reference, drawn)
    centred = drawn - drawn.mean(0)
    influences = 2 * centred * (drawn.mean(0) - reference[0])
    influences += centred**2 * (1 - (reference[1] / drawn.var(0)).sqrt())
    assert found.df == pytest.approx(variance_df((influences - influences.mean())[:, 0].numpy()))
    assert found.low * found.high == pytest.approx(found.value**2)
    error = float(influences.std()) / 300**0.5
    half = math.log(found.high / found.value) / 2.262  # t of nine degrees
    assert half * found.value == pytest.approx(error, rel=0.4)


def test_frechet_of_heavy_tails_holds_its_mean():
    """Lognormal features; images' influences alone would hold it in 88 %."""
    generator = torch.Generator().manual_seed(0)
    reference = moments(points(20000, 4, generator).exp())

    def fresh():
        return (0.9 * points(100, 4, generator)).exp()

    mean = np.mean([frechet_of_moments(*reference, *moments(fresh())) for _ in range(2000)])
    found = [estimates.frechet(reference, fresh()) for _ in range(150)]
    assert np.mean([each.low <= mean <= each.high for each in found]) > 0.9


def test_recall_of_sets_that_hardly_meet_is_doubtful():
    """One or two images decide it, and its interval holds it less often."""
    generator = torch.Generator().manual_seed(0)
    shift = 2.6 * torch.eye(1, 4, dtype=torch.float64)
    found = [
        estimates.neighbour_figures(points(100, 4, generator), points(100, 4, generator) + shift)
        for _ in range(20)
    ]
    assert np.mean([each["recall"].df < FEWEST_DF for each in found]) >= 0.8
    near = [
        estimates.neighbour_figures(points(300, 8, generator), points(300, 8, generator))
        for _ in range(5)
    ]
    assert all(each[name].df > FEWEST_DF for each in near for name in ("density", "recall"))
