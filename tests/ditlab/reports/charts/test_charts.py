"""Charts show what the points are: no peak is lost by thinning, scales hold the values,
alternatives name them.
"""

import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditlab.reports.charts import (
    MOST_PLAIN,
    MOST_STRETCHES,
    AxisScale,
    CurvePoints,
    draw_chart,
    linear_scale,
    number_label,
    thin,
)


def curve(values, name="train"):
    return CurvePoints(name, np.arange(1, len(values) + 1), np.asarray(values, dtype=float))


@pytest.mark.parametrize("num", [1, 2, MOST_PLAIN, MOST_PLAIN + 1, 801, 100_003])
def test_thinned_curves_keep_their_ends_peaks_and_length(num):
    values = np.random.default_rng(num).normal(size=num)
    values[num // 2] = 50.0
    thinned = thin(np.arange(num), values)
    assert len(thinned.steps) == len(thinned.values) <= MOST_STRETCHES
    assert (thinned.steps[0], thinned.steps[-1]) == (0, num - 1)
    assert (thinned.high.max(), thinned.low.min(), thinned.num_points) == (50.0, values.min(), num)
    assert thinned.last == values[-1] and thinned.is_thinned == (num > MOST_PLAIN)
    assert thinned.is_thinned or thinned.values.tolist() == values.tolist()
    assert (thinned.low <= thinned.values).all() and (thinned.values <= thinned.high).all()


def test_values_that_are_not_finite_are_counted_and_marked():
    drawn = draw_chart("loss", [curve([1.0, math.nan, 2.0, math.inf, 1.5])])
    assert drawn is not None and len(drawn.bad_marks) == 2 and "2 steps" in drawn.note
    assert draw_chart("loss", [curve([math.nan, math.inf])]) is draw_chart("loss", []) is None


@given(st.floats(-1e200, 1e200), st.floats(0, 1e200))
def test_ticks_lie_on_the_axis_and_are_labelled_apart(low, size):
    scale = linear_scale(low, low + size, 222, 10)
    ticks = scale.ticks()
    assert all(9.9 <= tick.position <= 222.1 for tick in ticks) and len(ticks) <= 21


@given(st.floats(1e-300, 1e100), st.floats(20, 1e12))
def test_ticks_of_a_logarithmic_scale_lie_on_the_axis(low, ratio):
    ticks = AxisScale(low, low * ratio, 222, 10, is_log=True).ticks()
    assert ticks and all(9.9 <= tick.position <= 222.1 for tick in ticks)


@pytest.mark.parametrize(
    ("value", "text"), [(200_000, "200k"), (1_500_000, "1.5M"), (0.05, "0.05"), (2000, "2,000")]
)
def test_tick_labels_are_short(value, text):
    assert number_label(value) == text


def test_a_wide_range_is_logarithmic_and_a_narrow_one_is_not():
    for values, is_log in (([100.0, 1.0], True), ([3.0, 1.0], False), ([100.0, -1.0], False)):
        drawn = draw_chart("loss", [curve(values)])
        assert drawn is not None and drawn.data["log"] == is_log


def test_paths_stay_inside_the_chart_whatever_the_values():
    for values in (
        [1e300, -1e300, 0.0],
        [5.0],
        [0.0, 0.0],
        [*np.zeros(5000), 1e9],
        [1e-320, 1.0],
        [1.7e308, -1.7e308],
    ):
        drawn = draw_chart("x", [curve(values)])
        assert drawn is not None
        paths = f"{drawn.curves[0].path} {drawn.curves[0].band}"
        numbers = [float(each) for each in re.findall(r"-?[\d.]+(?:e-?\d+)?", paths)]
        assert min(numbers) >= 0 and max(numbers) <= 420
        json.dumps(drawn.data, allow_nan=False)


def test_the_last_value_is_the_last_point_and_no_median():
    curves = [curve(np.linspace(2.0, 1.0, 1000)), curve([1.0, 0.75], "held out")]
    chart = draw_chart("loss", curves)
    assert chart is not None
    assert chart.data["curves"][0]["last"] == 1.0 < chart.data["curves"][0]["values"][-1]
    assert chart.alternative == "loss over steps; last train 1, held out 0.75."


def test_logarithmic_ticks_stand_at_1_2_and_5_within_two_powers_and_at_powers_beyond():
    for low, high, labels in (
        (10, 900, ["10", "20", "50", "100", "200", "500"]),
        (1e-4, 0.3, ["0.0001", "0.001", "0.01", "0.1"]),
    ):
        ticks = AxisScale(low, high, 0, 1, is_log=True).ticks()
        assert [tick.label for tick in ticks] == labels
