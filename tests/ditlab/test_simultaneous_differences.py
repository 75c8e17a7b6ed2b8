"""Differences of groups to one of them, which hold together; values far from the others."""

import math

import numpy as np
import pytest
from scipy.stats import studentized_range, ttest_ind, ttest_rel

from ditlab.intervals import describe_difference, far_values, simultaneous_differences

ONE = [1.0, 1.4, 0.9, 1.2]
OTHER = [2.0, 2.9, 1.1, 1.6]


def by_seed(values, size=0):
    return {(seed, size): value for seed, value in enumerate(values)}


@pytest.mark.parametrize("is_paired", [True, False])
def test_two_groups_have_students_or_welchs_interval(is_paired):
    (found,) = simultaneous_differences([by_seed(ONE), by_seed(OTHER, size=int(not is_paired))])
    expected = ttest_ind(OTHER, ONE, equal_var=False)
    if is_paired:
        expected = ttest_rel(OTHER, ONE)
    ends = expected.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert found.num_together == 1 and found.num_other == (0 if is_paired else 4)


def test_pairs_of_several_groups_share_the_spread_of_tukeys_method():
    noise = np.array([[1, -1, 0, 0], [0, 0, 1, -1], [-1, 1, -1, 1]])  # no seed, no group is ahead
    found = simultaneous_differences([by_seed(row) for row in noise.tolist()])
    variances = [np.var(noise[a] - noise[b], ddof=1) for a, b in ((0, 1), (0, 2), (1, 2))]
    own = np.var(noise[1] - noise[0], ddof=1)
    assert own < np.mean(variances) < np.median(variances) * 3 / 2.366  # 2.366: the median of chi^2
    quantile = studentized_range.ppf(0.96, 3, 6)
    assert found[0].half_width == pytest.approx(quantile * math.sqrt(np.mean(variances) / 4 / 2))
    assert [each.num_together for each in found] == [2, 2]
    text = describe_difference(found[0], ("B", "A"), "min", "loss")
    assert "(95 % for all 2 differences together, 4 pairs)" in text


def test_seeds_of_other_draws_are_no_pairs():
    groups = [by_seed(ONE), by_seed(OTHER), by_seed(OTHER, size=1)]
    assert [each.num_other for each in simultaneous_differences(groups)] == [0, 4]


def test_one_value_a_group_tells_nothing():
    found = simultaneous_differences([{"a": 69.1}, {"b": 70.0}, {"c": 68.6}])
    assert [each.half_width for each in found] == [math.inf, math.inf]
    assert simultaneous_differences([{"a": 1.0}]) == []


@pytest.mark.parametrize(
    "values, far",
    [
        ([0.1, 0.3, 9.0, 0.2, 0.0, 0.4], [2]),
        ([0.1, 9.0, 0.2, 0.0, 9.1, 0.3], [1, 4]),
        ([0.1, 0.3, 0.2, 9.0, 9.1, 9.2], []),
        ([1.0, 1.0, 1.0], []),
        ([1.0, 2.0], []),
        ([0.1, 0.2, 0.4, 0.3], []),
    ],
)
def test_values_far_from_two_thirds_of_the_others_are_named(values, far):
    assert far_values(values) == far
