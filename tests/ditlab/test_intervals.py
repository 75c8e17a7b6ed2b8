"""Intervals over seeds: against scipy, against simulated groups, and the sentences made of them."""

import json
import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from ditlab.intervals import describe_difference, paired_interval, seed_band


def test_a_paired_interval_is_students():
    differences = [0.3, -0.1, 0.4, 0.25]
    ours, peer = (
        paired_interval(differences, 0.9),
        ttest_1samp(differences, 0).confidence_interval(0.9),
    )
    assert (ours.low, ours.high) == pytest.approx((peer.low, peer.high))
    shifted = paired_interval([each + 1e9 for each in differences], 0.9)
    assert shifted.half_width == pytest.approx(ours.half_width, rel=1e-5)


def test_one_seed_is_unbounded_and_json_has_no_infinity():
    interval = paired_interval([0.1])
    assert interval.half_width == math.inf and not interval.excludes_zero
    assert json.loads(json.dumps(interval.to_dict(), allow_nan=False))["low"] is None
    assert "one seed tells nothing" in describe_difference(interval, ("B", "A"), "min", "loss")


@pytest.mark.parametrize("differences", [[], [0.1, math.nan]])
def test_missing_differences_are_refused(differences):
    with pytest.raises(ValueError, match="leave out failed pairs"):
        paired_interval(differences)


def test_a_band_leaves_out_what_is_not_finite():
    band = seed_band([[1.0, math.nan, math.nan], [2.0, 3.0, math.nan], [3.0, 4.0, math.inf]])
    assert band.num.tolist() == [3, 2, 0]
    assert band.mean[:2].tolist() == [2.0, 3.5] and math.isnan(band.mean[2])
    assert band.high[0] == pytest.approx(paired_interval([1.0, 2.0, 3.0]).high)


def test_intervals_hold_the_true_difference():
    """20,000 Gaussian groups. A rate of 0.95 has a standard error of 0.0015; the bounds are three
    of them.
    """
    true = 0.7
    draws = true + np.random.default_rng(0).standard_normal((12, 20_000))
    for num in (3, 4, 6, 8, 12):
        band = seed_band(draws[:num])
        assert 0.9455 < np.mean((band.low <= true) & (true <= band.high)) < 0.9545


@pytest.mark.parametrize(
    "differences, mode, sentence",
    [
        ([-0.012, -0.010, -0.013], "min", "B before A by 0.0117 +- 0.0038 in loss (95 %, 3 pairs)"),
        ([-0.012, -0.010, -0.013], "max", "A before B by 0.0117 +- 0.0038 in loss (95 %, 3 pairs)"),
        (
            [-0.012, 0.010, -0.003],
            "min",
            "B and A: no difference larger than 0.029 in loss was found (95 %, 3 pairs)",
        ),
        ([0.0, 0.0, 0.0], "min", "B and A: loss is equal with every seed (3 pairs)"),
    ],
)
def test_sentences(differences, mode, sentence):
    assert describe_difference(paired_interval(differences), ("B", "A"), mode, "loss") == sentence
