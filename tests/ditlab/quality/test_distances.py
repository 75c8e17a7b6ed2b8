"""Distances between sets of points: closed forms, invariants, and what is left of them with few
samples.
"""

import math

import pytest
import torch
from torch import nn

from ditlab.quality.features import frechet_distance, kernel_distance, nearest_distances
from support.damage import refused
from support.models.draws import seeded


def drawn(num, dim, seed, mean=0.0, std=1.0):
    generator = seeded(seed)
    return mean + std * torch.randn(num, dim, generator=generator, dtype=torch.float64)


def with_moments(points, mean, covariance):
    """The points moved and mixed so that their sample mean and covariance are exactly these."""
    centred = points - points.mean(0)
    whitened = (
        centred @ torch.linalg.inv(torch.linalg.cholesky(centred.T @ centred / (len(points) - 1))).T
    )
    return whitened @ torch.linalg.cholesky(covariance).T + mean


def covariance(dim, seed):
    half = drawn(dim, dim, seed)
    return half @ half.T + 0.1 * torch.eye(dim)


def test_frechet_of_two_dimensional_gaussians():
    """|m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1 S2)^1/2, of which the last one is
    sqrt(tr(S1 S2) + 2 sqrt(det(S1 S2))) for 2 x 2 matrices.
    """
    mean = torch.tensor([3.0, -4.0]).double()
    s1, s2 = covariance(2, 3), covariance(2, 4)
    cross = math.sqrt(float((s1 @ s2).trace()) + 2 * math.sqrt(float(torch.linalg.det(s1 @ s2))))
    expected = 25 + float(s1.trace() + s2.trace()) - 2 * cross
    one, two = with_moments(drawn(40, 2, 5), 0, s1), with_moments(drawn(40, 2, 6), mean, s2)
    assert frechet_distance(one, two) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("num", [5, 40, 300])
def test_frechet_of_a_set_with_itself_and_of_two_sets_both_ways(num):
    """Fewer points than dimensions, too."""
    one, two = drawn(num, 20, 7) @ covariance(20, 8), drawn(num + 3, 20, 9)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9 * float(one.square().sum()))
    assert frechet_distance(one, two) == pytest.approx(frechet_distance(two, one), rel=1e-9)
    assert frechet_distance(one, two) > 1


def test_frechet_where_covariances_have_no_full_rank():
    """In a space with dimensions that nothing moves in, it is the distance in the space without
    them.
    """
    one, two = drawn(60, 4, 10), drawn(70, 4, 11, mean=0.3, std=2.0)
    turn = torch.linalg.qr(drawn(10, 10, 12)).Q
    flat = [nn.functional.pad(points, (0, 6), value=2.0) @ turn for points in (one, two)]
    assert frechet_distance(*flat) == pytest.approx(frechet_distance(one, two), rel=1e-6)


def test_frechet_is_biased_upwards_and_less_so_with_more_samples():
    found = [frechet_distance(drawn(num, 16, 13), drawn(num, 16, 14)) for num in (8, 64, 512, 4096)]
    assert all(math.isfinite(value) for value in found)
    assert found == sorted(found, reverse=True) and found[0] > 5
    pairs = [(drawn(1024, 16, seed), drawn(1024, 16, seed + 1)) for seed in range(0, 40, 2)]
    mean = sum(frechet_distance(*pair) for pair in pairs) / 20
    assert mean == pytest.approx(16 * (16 + 5) / (2 * 1024), rel=0.1)  # as the docstring has it


def test_frechet_takes_any_dtype_and_passes_nan_on():
    one, two = drawn(50, 4, 15), drawn(50, 4, 16)
    assert frechet_distance(one.float(), two.float()) == pytest.approx(
        frechet_distance(one, two), rel=1e-4
    )
    two[3, 1] = float("nan")
    assert math.isnan(frechet_distance(one, two)) and math.isnan(kernel_distance(one, two).value)


def test_kernel_distance_is_the_average_over_pairs():
    """Written out pair by pair, no point with itself."""
    one, two = drawn(23, 3, 17), drawn(31, 3, 18, mean=0.5)

    def mean(xs, ys, same):
        values = [
            (float(x @ y) / 3 + 1) ** 3
            for i, x in enumerate(xs)
            for j, y in enumerate(ys)
            if not (same and i == j)
        ]
        return sum(values) / len(values)

    expected = mean(one, one, True) + mean(two, two, True) - 2 * mean(one, two, False)
    assert kernel_distance(one, two).value == pytest.approx(expected, rel=1e-9)
    assert kernel_distance(one, two, 5).value == pytest.approx(expected, rel=1e-9)


def test_kernel_distance_is_unbiased_and_knows_its_error():
    """For one distribution it is as often below 0 as above; for two, its spread over draws is the
    standard error.
    """

    def distances(mean, num_subsets):
        pairs = [(drawn(40, 8, n), drawn(40, 8, n + 1, mean=mean)) for n in range(0, 300, 2)]
        found = [kernel_distance(*pair, num_subsets) for pair in pairs]
        return torch.tensor([(each.value, each.standard_error) for each in found]).T

    same, _ = distances(0.0, 2)
    assert abs(same.mean()) < 3 * same.std() / 150**0.5
    values, errors = distances(0.5, 5)
    assert float(errors.mean()) == pytest.approx(float(values.std()), rel=0.25)


def test_kernel_distance_refuses_too_few_points():
    with refused("19 and 500 points", ValueError):
        kernel_distance(drawn(19, 4, 21), drawn(500, 4, 22))


@pytest.mark.parametrize("chunk", [7, 1024])
def test_nearest_distances(chunk):
    reference = drawn(40, 5, 23).float()
    samples = torch.cat([reference[[3, 17]], drawn(11, 5, 24).float()])
    found = nearest_distances(samples, reference, chunk)
    expected = (samples.double()[:, None] - reference.double()).square().sum(2).sqrt().amin(1)
    assert found.dtype == torch.float64 and found[:2].tolist() == [0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
