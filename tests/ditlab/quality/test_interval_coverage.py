"""Intervals of figures over samples hold the truth about as often as they say, and few samples that
carry one are said.
"""

import math

import numpy as np
import pytest

from ditlab_models.intervals import (
    FEWEST_DF,
    Estimate,
    correlation_estimate,
    doubtful_intervals,
    interval_ends,
    mean_estimate,
    ratio_estimate,
    share_estimate,
    variance_df,
)

DRAWS = 400


def held(draw, truth):
    """Share of draws whose interval holds the truth, and of those that are said to be doubtful."""
    found = [draw(np.random.default_rng(seed)) for seed in range(DRAWS)]
    inside = np.mean([each.low <= truth <= each.high for each in found])
    return inside, np.mean([each.df < FEWEST_DF for each in found])


def test_degrees_of_freedom_are_those_of_the_kurtosis():
    """The kurtosis is n / k where k of n values are 1 or -1 and the others 0. Equal squares know their
    variance as well as n values can."""
    values = np.zeros(100)
    values[:10] = [1, -1] * 5
    assert variance_df(values) == pytest.approx(2 * 100 / (100 / 10 - 1))
    assert variance_df(np.array([1.0, -1.0] * 20)) == 39


def test_intervals_of_gaussian_values_are_students():
    values = np.random.default_rng(0).normal(3, 1, 400)
    found = mean_estimate(values)
    half = 1.966 * values.std(ddof=1) / 20
    expected = (found.value - half, found.value + half)
    assert (found.low, found.high) == pytest.approx(expected, abs=0.15 * half)
    assert found.value == values.mean() and 250 < found.df < 399


def test_intervals_of_skewed_values_hold_the_mean():
    """Lognormal ones of deviation 1: 30 of them have their mean within Student's interval in 88 %."""
    inside, doubtful = held(lambda rng: mean_estimate(rng.lognormal(0, 1, 30)), math.exp(0.5))
    assert 0.915 < inside < 0.975 and doubtful > 0.7
    inside, doubtful = held(lambda rng: mean_estimate(rng.normal(0, 1, 30)), 0.0)
    assert 0.925 < inside < 0.985 and doubtful < 0.12


def test_perplexities_of_skewed_lengths_hold_the_truth_or_are_doubtful():
    """Lognormal lengths of deviation 1.5, and nats a token of half of it."""

    def draw(rng):
        lengths = rng.lognormal(4, 1.5, 30)
        return ratio_estimate(lengths * rng.lognormal(0, 0.75, 30), lengths)

    inside, doubtful = held(draw, math.exp(0.75**2 / 2))
    assert inside > 0.9 and doubtful > 0.9


def test_one_value_among_equal_ones_has_finite_ends():
    values = np.ones(50)
    values[7] = 100.0
    found = mean_estimate(values)
    assert found.low < found.value < found.high < 100 and found.df < 5
    assert mean_estimate(np.full(50, 0.1)).named("x").keys() == {"x", "x_low", "x_high", "x_df"}


def test_shares_have_wilsons_interval():
    """The interval of none of n ends at z^2 / (n + z^2)."""
    assert share_estimate(0, 10) == pytest.approx((0, 0, 3.8415 / 13.8415, math.inf), rel=1e-4)
    assert share_estimate(10, 10)[:3] == pytest.approx((1, 10 / 13.8415, 1), rel=1e-4)
    covered = [
        share_estimate(int(np.random.default_rng(n).binomial(50, 0.96)), 50) for n in range(400)
    ]
    assert 0.9 < np.mean([each.low <= 0.96 <= each.high for each in covered]) < 0.99


def sums(x, y):
    """Sums of pairs (num, pairs) by sample."""
    return np.stack([each.sum(1) for each in (np.ones_like(x), x, y, x**2, y**2, x * y)], 1)


def test_correlations_of_single_gaussian_pairs_have_fishers_interval():
    x, noise = np.random.default_rng(0).standard_normal((2, 2000, 1))
    y = 0.6 * x + 0.8 * noise
    found = correlation_estimate(sums(x, y))
    r = np.corrcoef(x[:, 0], y[:, 0])[0, 1]
    ends = [math.tanh(math.atanh(r) + side * 1.96 / math.sqrt(1997)) for side in (-1, 1)]
    assert found.value == pytest.approx(r)
    assert (found.low, found.high) == pytest.approx(ends, abs=0.003)


def test_correlations_of_windows_count_windows_and_no_pairs():
    """Pairs of a window share a level: Fisher's interval of 1,000 pairs would hold 0.6 in about half
    of the draws."""

    def draw(rng):
        x, noise = rng.standard_normal((2, 50, 1)) + 0.3 * rng.standard_normal((2, 50, 20))
        return correlation_estimate(sums(x, 0.6 * x + 0.8 * noise))

    inside, _ = held(draw, 0.6)
    assert 0.91 < inside < 0.98


def test_doubtful_intervals_are_named_and_others_are_not():
    values = {"a": 1.0, "a_low": 0.0, "a_high": 2.0, "a_df": 7.2}
    values |= {"b": 1.0, "b_low": 0.0, "b_high": 2.0, "b_df": 20.0, "c": 3.0, "c_df": 1.0}
    found = interval_ends(values)
    assert found == {"a": Estimate(1, 0, 2, 7.2), "b": Estimate(1, 0, 2, 20)}
    assert "below 20): a (7.2); measure more samples." in doubtful_intervals(found)
    del found["a"]
    assert doubtful_intervals(found) == ""
